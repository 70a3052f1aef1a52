import java.io.StringWriter;
import java.util.TimeZone;

import org.apache.paimon.casting.CastExecutor;
import org.apache.paimon.casting.CastExecutors;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.types.DataType;

/** Java's casts of single values, asked in bulk. */
public class Casts {

    public Casts(Object scratch) {}

    /**
     * For {"zone", "cases": [[source, target, [value]]]} one answer for each case: null without a
     * rule, else a list with [value] for each value that is cast and a text for each that is not.
     */
    public String casts(String json) throws Exception {
        JsonNode arguments = Rows.MAPPER.readTree(json);
        TimeZone before = TimeZone.getDefault();
        TimeZone.setDefault(TimeZone.getTimeZone(((JsonNode) arguments.get("zone")).asText()));
        try {
            return answers((JsonNode) arguments.get("cases"));
        } finally {
            TimeZone.setDefault(before);
        }
    }

    private static String answers(JsonNode cases) throws Exception {
        StringWriter text = new StringWriter();
        JsonGenerator out = Rows.MAPPER.getFactory().createGenerator(text);
        out.writeStartArray();
        for (int i = 0; i < cases.size(); i++) {
            JsonNode one = (JsonNode) cases.get(i);
            DataType source = Rows.type((JsonNode) one.get(0));
            DataType target = Rows.type((JsonNode) one.get(1));
            CastExecutor cast = CastExecutors.resolve(source, target);
            if (cast == null) {
                out.writeNull();
                continue;
            }
            JsonNode values = (JsonNode) one.get(2);
            out.writeStartArray();
            for (int j = 0; j < values.size(); j++) {
                answer(out, cast, Rows.value((JsonNode) values.get(j), source), target);
            }
            out.writeEndArray();
        }
        out.writeEndArray();
        out.close();
        return text.toString();
    }

    private static void answer(JsonGenerator out, CastExecutor cast, Object value, DataType target)
            throws Exception {
        Object result;
        try {
            result = cast.cast(value);
        } catch (Exception e) {
            out.writeString(e.toString());
            return;
        }
        out.writeStartArray();
        Rows.write(out, GenericRow.of(new Object[] {result}), 0, target);
        out.writeEndArray();
    }
}
