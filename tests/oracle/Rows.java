import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.DataGetters;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypeChecks;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.IntType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.MultisetType;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.SerializationUtils;

/** Values of Paimon as JSON and back, exactly; see judge.py for the encoding. */
public class Rows {

    public static final ObjectMapper MAPPER = mapper();

    private static ObjectMapper mapper() {
        JsonFactory factory = new JsonFactory();
        factory.configure(JsonParser.Feature.ALLOW_NON_NUMERIC_NUMBERS, true);
        return new ObjectMapper(factory);
    }

    public static DataType type(JsonNode node) {
        return DataTypeJsonParser.parseDataType(node);
    }

    /** Type of rows whose fields have the given types, named f0, f1 and so on. */
    public static RowType rowType(JsonNode types) {
        DataType[] fields = new DataType[types.size()];
        for (int i = 0; i < fields.length; i++) {
            fields[i] = type((JsonNode) types.get(i));
        }
        return RowType.of(fields);
    }

    public static GenericRow row(JsonNode values, RowType type) {
        if (values.size() != type.getFieldCount()) {
            throw new IllegalArgumentException(
                    "row has " + values.size() + " values, its type has " + type.getFieldCount());
        }
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) {
            row.setField(i, value((JsonNode) values.get(i), type.getTypeAt(i)));
        }
        return row;
    }

    public static BinaryRow binaryRow(JsonNode values, RowType type) {
        // The serializer reuses its row.
        return new InternalRowSerializer(type).toBinaryRow(row(values, type)).copy();
    }

    public static Object value(JsonNode node, DataType type) {
        if (node == null || node.isNull()) {
            return null;
        }
        String root = type.getTypeRoot().name();
        if (root.equals("CHAR") || root.equals("VARCHAR")) {
            return BinaryString.fromString(node.textValue());
        } else if (root.equals("BOOLEAN")) {
            return Boolean.valueOf(node.booleanValue());
        } else if (root.equals("BINARY") || root.equals("VARBINARY")) {
            return bytes(node);
        } else if (root.equals("DECIMAL")) {
            DecimalType decimal = (DecimalType) type;
            Decimal value =
                    Decimal.fromBigDecimal(
                            new java.math.BigDecimal(node.textValue()),
                            decimal.getPrecision(),
                            decimal.getScale());
            if (value == null) {
                throw new IllegalArgumentException(node + " does not fit " + type);
            }
            return value;
        } else if (root.equals("TINYINT")) {
            return Byte.valueOf((byte) integer(node, Byte.MIN_VALUE, Byte.MAX_VALUE));
        } else if (root.equals("SMALLINT")) {
            return Short.valueOf((short) integer(node, Short.MIN_VALUE, Short.MAX_VALUE));
        } else if (root.equals("INTEGER")
                || root.equals("DATE")
                || root.equals("TIME_WITHOUT_TIME_ZONE")) {
            return Integer.valueOf((int) integer(node, Integer.MIN_VALUE, Integer.MAX_VALUE));
        } else if (root.equals("BIGINT")) {
            return Long.valueOf(integer(node, Long.MIN_VALUE, Long.MAX_VALUE));
        } else if (root.equals("FLOAT")) {
            return Float.valueOf(
                    node.isTextual() ? Float.parseFloat(node.textValue()) : node.floatValue());
        } else if (root.equals("DOUBLE")) {
            return Double.valueOf(
                    node.isTextual() ? Double.parseDouble(node.textValue()) : node.doubleValue());
        } else if (root.startsWith("TIMESTAMP")) {
            String text = node.textValue();
            int colon = text.indexOf(':');
            return Timestamp.fromEpochMillis(
                    Long.parseLong(text.substring(0, colon)),
                    Integer.parseInt(text.substring(colon + 1)));
        } else if (root.equals("ARRAY")) {
            return array(node, ((ArrayType) type).getElementType());
        } else if (root.equals("MAP")) {
            MapType map = (MapType) type;
            return map(node, map.getKeyType(), map.getValueType());
        } else if (root.equals("MULTISET")) {
            return map(node, ((MultisetType) type).getElementType(), new IntType());
        } else if (root.equals("ROW")) {
            return row(node, (RowType) type);
        } else if (root.equals("VARIANT")) {
            return NewerTypes.variant(
                    bytes((JsonNode) node.get(0)), bytes((JsonNode) node.get(1)));
        } else if (root.equals("BLOB")) {
            return NewerTypes.blob(bytes(node));
        }
        throw new UnsupportedOperationException("no JSON form for " + type);
    }

    private static long integer(JsonNode node, long min, long max) {
        if (!node.isIntegralNumber() || !node.canConvertToLong()) {
            throw new IllegalArgumentException(node + " is not a whole number of 64 bits");
        }
        long value = node.longValue();
        if (value < min || value > max) {
            throw new IllegalArgumentException(node + " is out of range");
        }
        return value;
    }

    private static GenericArray array(JsonNode node, DataType element) {
        Object[] values = new Object[node.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = value((JsonNode) node.get(i), element);
        }
        return new GenericArray(values);
    }

    private static GenericMap map(JsonNode node, DataType key, DataType value) {
        Map entries = new LinkedHashMap();
        for (int i = 0; i < node.size(); i++) {
            JsonNode entry = (JsonNode) node.get(i);
            entries.put(
                    value((JsonNode) entry.get(0), key), value((JsonNode) entry.get(1), value));
        }
        return new GenericMap(entries);
    }

    public static void write(JsonGenerator out, DataGetters row, int pos, DataType type)
            throws Exception {
        if (row.isNullAt(pos)) {
            out.writeNull();
            return;
        }
        String root = type.getTypeRoot().name();
        if (root.equals("CHAR") || root.equals("VARCHAR")) {
            out.writeString(row.getString(pos).toString());
        } else if (root.equals("BOOLEAN")) {
            out.writeBoolean(row.getBoolean(pos));
        } else if (root.equals("BINARY") || root.equals("VARBINARY")) {
            out.writeString("x:" + hex(row.getBinary(pos)));
        } else if (root.equals("DECIMAL")) {
            DecimalType decimal = (DecimalType) type;
            out.writeString(
                    row.getDecimal(pos, decimal.getPrecision(), decimal.getScale())
                            .toBigDecimal()
                            .toPlainString());
        } else if (root.equals("TINYINT")) {
            out.writeNumber((int) row.getByte(pos));
        } else if (root.equals("SMALLINT")) {
            out.writeNumber((int) row.getShort(pos));
        } else if (root.equals("INTEGER")
                || root.equals("DATE")
                || root.equals("TIME_WITHOUT_TIME_ZONE")) {
            out.writeNumber(row.getInt(pos));
        } else if (root.equals("BIGINT")) {
            out.writeNumber(row.getLong(pos));
        } else if (root.equals("FLOAT")) {
            // Widened, so that Python reads the very value and not its shortest 32 bit text.
            writeDouble(out, (double) row.getFloat(pos));
        } else if (root.equals("DOUBLE")) {
            writeDouble(out, row.getDouble(pos));
        } else if (root.startsWith("TIMESTAMP")) {
            Timestamp value = row.getTimestamp(pos, DataTypeChecks.getPrecision(type));
            out.writeString(value.getMillisecond() + ":" + value.getNanoOfMillisecond());
        } else if (root.equals("ARRAY")) {
            InternalArray array = row.getArray(pos);
            DataType element = ((ArrayType) type).getElementType();
            out.writeStartArray();
            for (int i = 0; i < array.size(); i++) {
                write(out, array, i, element);
            }
            out.writeEndArray();
        } else if (root.equals("MAP")) {
            MapType map = (MapType) type;
            writeMap(out, row.getMap(pos), map.getKeyType(), map.getValueType());
        } else if (root.equals("MULTISET")) {
            writeMap(
                    out,
                    row.getMap(pos),
                    ((MultisetType) type).getElementType(),
                    new IntType());
        } else if (root.equals("ROW")) {
            RowType nested = (RowType) type;
            writeRow(out, row.getRow(pos, nested.getFieldCount()), nested);
        } else if (root.equals("VARIANT")) {
            byte[][] variant = NewerTypes.variant(row, pos);
            out.writeStartArray();
            out.writeString("x:" + hex(variant[0]));
            out.writeString("x:" + hex(variant[1]));
            out.writeEndArray();
        } else if (root.equals("BLOB")) {
            out.writeString("x:" + hex(NewerTypes.blob(row, pos)));
        } else {
            throw new UnsupportedOperationException("no JSON form for " + type);
        }
    }

    public static void writeRow(JsonGenerator out, InternalRow row, RowType type)
            throws Exception {
        out.writeStartArray();
        for (int i = 0; i < type.getFieldCount(); i++) {
            write(out, row, i, type.getTypeAt(i));
        }
        out.writeEndArray();
    }

    private static void writeDouble(JsonGenerator out, double value) throws Exception {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            out.writeString(Double.toString(value));
        } else if (value == 0 && 1 / value < 0) {
            out.writeString("-0.0");
        } else {
            out.writeNumber(value);
        }
    }

    private static void writeMap(JsonGenerator out, InternalMap map, DataType key, DataType value)
            throws Exception {
        InternalArray keys = map.keyArray();
        InternalArray values = map.valueArray();
        out.writeStartArray();
        for (int i = 0; i < map.size(); i++) {
            out.writeStartArray();
            write(out, keys, i, key);
            write(out, values, i, value);
            out.writeEndArray();
        }
        out.writeEndArray();
    }

    private static byte[] bytes(JsonNode node) {
        String text = node.textValue();
        if (!text.startsWith("x:")) {
            throw new IllegalArgumentException("bytes are written x:<hex>, found " + text);
        }
        return unhex(text.substring(2));
    }

    public static byte[] unhex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    public static String hex(byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (int i = 0; i < bytes.length; i++) {
            text.append(Character.forDigit((bytes[i] >> 4) & 15, 16));
            text.append(Character.forDigit(bytes[i] & 15, 16));
        }
        return text.toString();
    }

    /** Four bytes of arity, then the row, as in manifests. */
    public static String hex(BinaryRow row) {
        return hex(SerializationUtils.serializeBinaryRow(row));
    }

    public static Map strings(JsonNode node) {
        Map map = new LinkedHashMap();
        if (node == null) {
            return map;
        }
        Iterator fields = node.fields();
        while (fields.hasNext()) {
            Map.Entry entry = (Map.Entry) fields.next();
            JsonNode value = (JsonNode) entry.getValue();
            map.put(entry.getKey(), value.isNull() ? null : value.asText());
        }
        return map;
    }

    public static List stringList(JsonNode node) {
        List list = new ArrayList();
        for (int i = 0; i < node.size(); i++) {
            list.add(((JsonNode) node.get(i)).asText());
        }
        return list;
    }

    public static boolean has(JsonNode node, String field) {
        return node.get(field) != null && !((JsonNode) node.get(field)).isNull();
    }
}
