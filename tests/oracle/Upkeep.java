import java.time.Duration;
import java.time.ZoneOffset;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.paimon.consumer.Consumer;
import org.apache.paimon.consumer.ConsumerManager;
import org.apache.paimon.fs.Path;
import org.apache.paimon.partition.PartitionTimeExtractor;
import org.apache.paimon.partition.actions.SuccessFileMarkDoneAction;
import org.apache.paimon.partition.file.SuccessFile;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.tag.TagTimeExpire;
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

    /** A tag that is retained for so long. */
    public void createTag(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Oracle.open(args)
                .createTag(
                        text(args, "name"),
                        ((JsonNode) args.get("id")).asLong(),
                        Duration.ofMillis(((JsonNode) args.get("retained_ms")).asLong()));
    }

    /** Makes the tags that a committer would make after its commit. */
    public void createTags(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        table.store().newTagAutoManager(table).getTagAutoCreation().run();
    }

    /** The names of the tags that have expired. */
    public String expireTags(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        List callbacks = table.store().createTagCallbacks(table);
        List expired =
                TagTimeExpire.create(
                                table.snapshotManager(),
                                table.tagManager(),
                                table.store().newTagDeletion(),
                                callbacks)
                        .expire();
        return Rows.MAPPER.writeValueAsString(expired);
    }

    /** Makes tags and has others expire, as a committer does after its commit. */
    public void upkeepTags(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        table.store().newTagAutoManager(table).run();
    }

    /** Has snapshots expire as the table's options say, as a committer does after its commit. */
    public int expireSnapshots(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        return table.newExpireSnapshots().config(table.coreOptions().expireConfig()).expire();
    }

    /** As expireSnapshots; none where changelogs go with their snapshots. */
    public int expireChangelogs(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        if (!table.coreOptions().changelogLifecycleDecoupled()) {
            return 0;
        }
        return table.newExpireChangelog().config(table.coreOptions().expireConfig()).expire();
    }

    /** The partitions that expire now, as a job with these options has them expire. */
    public String expirePartitions(String json) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        return Rows.MAPPER.writeValueAsString(
                table.store().newPartitionExpire("java", table).expire(7L));
    }

    /** Marks a partition done. */
    public void markDone(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        new SuccessFileMarkDoneAction(new LateRenames(), new Path(text(args, "path")))
                .markDone(text(args, "partition"));
    }

    /** When a partition was marked first, and last; null if it never was. */
    public String marked(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Path folder = new Path(new Path(text(args, "path")), text(args, "partition"));
        SuccessFile found =
                SuccessFileMarkDoneAction.safelyFromPath(
                        new LateRenames(), new Path(folder, "_SUCCESS"));
        return found == null
                ? "null"
                : "[" + found.creationTime() + "," + found.modificationTime() + "]";
    }

    /** The times of partitions, as milliseconds as if they were UTC; null for no time. */
    public String partitionTimes(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        List found = new ArrayList();
        for (int i = 0; i < cases.size(); i++) {
            JsonNode each = (JsonNode) cases.get(i);
            String pattern = Rows.has(each, "pattern") ? text(each, "pattern") : null;
            String formatter = Rows.has(each, "formatter") ? text(each, "formatter") : null;
            Object time = null;
            try {
                time =
                        Long.valueOf(
                                new PartitionTimeExtractor(pattern, formatter)
                                        .extract(
                                                texts((JsonNode) each.get("keys")),
                                                texts((JsonNode) each.get("values")))
                                        .toInstant(ZoneOffset.UTC)
                                        .toEpochMilli());
            } catch (DateTimeParseException e) {
                time = null;
            }
            found.add(time);
        }
        return Rows.MAPPER.writeValueAsString(found);
    }

    private static List texts(JsonNode nodes) {
        List found = new ArrayList();
        for (int i = 0; i < nodes.size(); i++) {
            found.add(((JsonNode) nodes.get(i)).asText());
        }
        return found;
    }

    private static ConsumerManager consumers(JsonNode args) {
        return new ConsumerManager(
                new LateRenames(), new Path(text(args, "path")), text(args, "branch"));
    }

    private static String text(JsonNode args, String field) {
        return ((JsonNode) args.get(field)).asText();
    }
}
