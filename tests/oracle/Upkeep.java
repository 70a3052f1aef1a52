import java.util.Map;
import java.util.TreeMap;

import org.apache.paimon.consumer.Consumer;
import org.apache.paimon.consumer.ConsumerManager;
import org.apache.paimon.fs.Path;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.utils.DateTimeUtils;

/** What Java's jobs do besides writing, compacting and the expiry of snapshots. */
public class Upkeep {

    public Upkeep(String scratch) {}

    /** Where a reader is. */
    public void moveConsumer(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        long next = ((JsonNode) args.get("next")).asLong();
        consumers(args).resetConsumer(text(args, "name"), new Consumer(next));
    }

    /** Those that changed last before a moment go. */
    public void expireConsumers(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        long before = ((JsonNode) args.get("before_ms")).asLong();
        consumers(args).expire(DateTimeUtils.toLocalDateTime(before));
    }

    /** The next snapshot of each by its name. */
    public String consumers(String json) throws Exception {
        Map found = new TreeMap(consumers(Rows.MAPPER.readTree(json)).consumers());
        return Rows.MAPPER.writeValueAsString(found);
    }

    private static ConsumerManager consumers(JsonNode args) {
        return new ConsumerManager(
                new LateRenames(), new Path(text(args, "path")), text(args, "branch"));
    }

    private static String text(JsonNode args, String field) {
        return ((JsonNode) args.get(field)).asText();
    }
}
