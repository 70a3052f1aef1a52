import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.index.BucketAssigner;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.org.apache.datasketches.hll.HllSketch;
import org.apache.paimon.shade.org.apache.datasketches.theta.UpdateSketch;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.PartitionKeyExtractor;
import org.apache.paimon.table.sink.RowPartitionKeyExtractor;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.EndOfScanException;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataTypeRoot;
import org.apache.paimon.utils.RoaringBitmap32;
import org.apache.paimon.utils.RoaringBitmap64;

/** Tables to measure, and measured compactions. Janino compiles this: no lambdas, raw types. */
public class Bench {

    private static final int APPEND_THREADS = 2;
    private static final long MILLIS_MAX = 1L << 40;

    private final String scratch;

    public Bench(String scratch) {
        this.scratch = scratch;
    }

    /**
     * Commits "commits" times "rows" random rows, keys drawn from "keys" numbers from "first_key"
     * on, "nulls" percent of the other values null. The keys of a commit ascend if they are
     * "distinct", one of each rows-th part of the numbers. A column p is the key's number modulo
     * "partitions". Types are those of the newest schema; "seed" decides all values.
     */
    public void fill(String json) throws Exception {
        JsonNode args = (JsonNode) Rows.MAPPER.readTree(json);
        FileStoreTable table = open(args, new Options());
        int commits = ((JsonNode) args.get("commits")).asInt();
        int rows = ((JsonNode) args.get("rows")).asInt();
        int keys = ((JsonNode) args.get("keys")).asInt();
        int first = ((JsonNode) args.get("first_key")).asInt();
        boolean distinct = ((JsonNode) args.get("distinct")).asBoolean();
        int nulls = ((JsonNode) args.get("nulls")).asInt();
        int partitions = ((JsonNode) args.get("partitions")).asInt();
        SplittableRandom random = new SplittableRandom(((JsonNode) args.get("seed")).asLong());
        IOManager io = IOManager.create(scratch);
        try {
            for (int i = 0; i < commits; i++) {
                String user = UUID.randomUUID().toString();
                TableWriteImpl write = (TableWriteImpl) table.newWrite(user).withIOManager(io);
                TableCommitImpl commit = table.newCommit(user);
                BucketAssigner assigner = Oracle.assigner(table, user, false);
                PartitionKeyExtractor of = new RowPartitionKeyExtractor(table.schema());
                try {
                    for (int j = 0; j < rows; j++) {
                        int key =
                                distinct
                                        ? j * (keys / rows) + random.nextInt(keys / rows)
                                        : random.nextInt(keys);
                        GenericRow row =
                                row(
                                        table.schema().fields(),
                                        random,
                                        first + key,
                                        nulls,
                                        partitions);
                        if (assigner == null) {
                            write.write(row);
                        } else {
                            int hash = of.trimmedPrimaryKey(row).hashCode();
                            write.write(row, assigner.assign(of.partition(row), hash));
                        }
                    }
                    commit.commit(0L, write.prepareCommit(true, 0L));
                } finally {
                    write.close();
                    commit.close();
                }
            }
        } finally {
            io.close();
        }
    }

    private static FileStoreTable open(JsonNode args, Options options) {
        options.set("path", ((JsonNode) args.get("path")).asText());
        return FileStoreTableFactory.create(LocalFileIO.create(), options);
    }

    private static GenericRow row(
            List fields, SplittableRandom random, int key, int nulls, int partitions)
            throws IOException {
        GenericRow row = new GenericRow(fields.size());
        for (int i = 0; i < fields.size(); i++) {
            DataField field = (DataField) fields.get(i);
            Object value =
                    field.name().equals("p")
                            ? Integer.valueOf(key % partitions)
                            : value(field, random, key);
            boolean isNull =
                    nulls > 0 && field.type().isNullable() && random.nextInt(100) < nulls;
            row.setField(i, isNull ? null : value);
        }
        return row;
    }

    private static Object value(DataField field, SplittableRandom random, int key)
            throws IOException {
        String name = field.name();
        if (name.equals("id")) {
            if (field.type().getTypeRoot() == DataTypeRoot.BIGINT) {
                return Long.valueOf((long) key);
            }
            return BinaryString.fromString("user-" + padded(key, 9));
        } else if (name.equals("a")) {
            return Integer.valueOf(key / 30000);
        } else if (name.equals("b")) {
            return BinaryString.fromString("region-" + padded(key / 100 % 300, 3));
        } else if (name.equals("n")) {
            return Long.valueOf((long) (key % 100));
        } else if (name.equals("i")) {
            return Integer.valueOf(random.nextInt());
        } else if (name.equals("l")) {
            if (field.type().getTypeRoot() == DataTypeRoot.INTEGER) {
                return Integer.valueOf(random.nextInt());
            }
            return Long.valueOf(random.nextLong());
        } else if (name.equals("d")) {
            return Double.valueOf(random.nextDouble());
        } else if (name.equals("s")) {
            byte[] letters = new byte[16 + random.nextInt(9)];
            for (int i = 0; i < letters.length; i++) {
                letters[i] = (byte) ('a' + random.nextInt(26));
            }
            return BinaryString.fromBytes(letters);
        } else if (name.equals("c")) {
            return BinaryString.fromString("category-" + random.nextInt(50));
        } else if (name.equals("ts")) {
            return Timestamp.fromEpochMillis(random.nextLong(MILLIS_MAX));
        }
        return aggregated(name, random);
    }

    private static Object aggregated(String name, SplittableRandom random) throws IOException {
        if (name.equals("ar")) {
            Object[] numbers = new Object[3];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = Integer.valueOf(random.nextInt(50));
            }
            return new GenericArray(numbers);
        } else if (name.equals("m")) {
            Map entries = new LinkedHashMap();
            while (entries.size() < 3) {
                Object key = BinaryString.fromString("key-" + random.nextInt(20));
                entries.put(key, Integer.valueOf(random.nextInt()));
            }
            return new GenericMap(entries);
        } else if (name.equals("ne")) {
            Object[] entries = new Object[3];
            for (int i = 0; i < entries.length; i++) {
                Object text = BinaryString.fromString("text-" + random.nextInt(1000));
                entries[i] = GenericRow.of(new Object[] {Integer.valueOf(random.nextInt(20)), text});
            }
            return new GenericArray(entries);
        } else if (name.equals("li")) {
            return BinaryString.fromString("text-" + random.nextInt(1 << 20));
        } else if (name.equals("rb")) {
            RoaringBitmap32 bitmap = new RoaringBitmap32();
            for (int i = 0; i < 20; i++) {
                bitmap.add(random.nextInt(1 << 16));
            }
            return bitmap.serialize();
        } else if (name.equals("hl")) {
            HllSketch sketch = new HllSketch(12);
            for (int i = 0; i < 6; i++) {
                sketch.update(random.nextLong());
            }
            return sketch.toCompactByteArray();
        } else if (name.equals("th")) {
            UpdateSketch sketch = UpdateSketch.builder().build();
            for (int i = 0; i < 6; i++) {
                sketch.update(random.nextLong());
            }
            return sketch.compact().toByteArray();
        } else if (name.equals("rl")) {
            RoaringBitmap64 bitmap = new RoaringBitmap64();
            for (int i = 0; i < 20; i++) {
                bitmap.add(random.nextLong(1L << 17));
            }
            return bitmap.serialize();
        }
        throw new IllegalArgumentException("no values for column " + name);
    }

    private static String padded(int number, int length) {
        StringBuilder text = new StringBuilder(String.valueOf(number));
        while (text.length() < length) {
            text.insert(0, '0');
        }
        return text.toString();
    }

    /** [wall, CPU] nanoseconds of one compaction, the opening of the table included. */
    public String compact(String json) throws Exception {
        JsonNode args = (JsonNode) Rows.MAPPER.readTree(json);
        System.gc();
        long cpu = cpuNanos();
        long start = System.nanoTime();
        Options forced = new Options();
        forced.set("write-only", "false");
        FileStoreTable table = open(args, forced);
        if (table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
            compactUnaware(table);
        } else {
            new Oracle(scratch).compact(json);
        }
        return "[" + (System.nanoTime() - start) + "," + (cpuNanos() - cpu) + "]";
    }

    /**
     * [wall, CPU] nanoseconds of an expiry of snapshots, of as many rounds as expire anything, the
     * opening of the table included. Manifests are read "whole", or as Java reads local files.
     */
    public String expire(String json) throws Exception {
        JsonNode args = (JsonNode) Rows.MAPPER.readTree(json);
        System.gc();
        long cpu = cpuNanos();
        long start = System.nanoTime();
        boolean whole = ((JsonNode) args.get("whole")).asBoolean();
        Options options = new Options(Rows.strings((JsonNode) args.get("options")));
        FileStoreTable table = whole ? Oracle.open(args) : open(args, options);
        ExpireConfig config = table.coreOptions().expireConfig();
        while (table.newExpireSnapshots().config(config).expire() > 0) {
            // The limit of a round kept some.
        }
        return "[" + (System.nanoTime() - start) + "," + (cpuNanos() - cpu) + "]";
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                        ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    /** The coordinator's tasks side by side, as the dedicated job runs them; one commit. */
    private static void compactUnaware(FileStoreTable table) throws Exception {
        String user = UUID.randomUUID().toString();
        AppendCompactCoordinator coordinator = new AppendCompactCoordinator(table, false);
        ExecutorService pool = Executors.newFixedThreadPool(APPEND_THREADS);
        List futures = new ArrayList();
        try {
            try {
                while (true) {
                    List tasks = coordinator.run();
                    for (int i = 0; i < tasks.size(); i++) {
                        AppendCompactTask task = (AppendCompactTask) tasks.get(i);
                        futures.add(pool.submit((Callable) new AppendWork(table, task, user)));
                    }
                }
            } catch (EndOfScanException end) {
                // All files are planned.
            }
            List messages = new ArrayList();
            for (int i = 0; i < futures.size(); i++) {
                messages.add(((Future) futures.get(i)).get());
            }
            TableCommitImpl commit = table.newCommit(user);
            commit.commit(0L, messages);
            commit.close();
        } finally {
            pool.shutdown();
        }
    }

    private static class AppendWork implements Callable {

        private final FileStoreTable table;
        private final AppendCompactTask task;
        private final String user;

        AppendWork(FileStoreTable table, AppendCompactTask task, String user) {
            this.table = table;
            this.task = task;
            this.user = user;
        }

        public Object call() throws Exception {
            BaseAppendFileStoreWrite write =
                    (BaseAppendFileStoreWrite) table.store().newWrite(user);
            try {
                CommitMessage message = task.doCompact(table, write);
                return message;
            } finally {
                write.close();
            }
        }
    }
}
