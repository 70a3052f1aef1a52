import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import org.apache.paimon.CoreOptions;
import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.append.BucketedAppendCompactManager;
import org.apache.paimon.bucket.BucketFunction;
import org.apache.paimon.codegen.CodeGenUtils;
import org.apache.paimon.codegen.RecordComparator;
import org.apache.paimon.compact.CompactUnit;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryRowWriter;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.deletionvectors.BucketedDvMaintainer;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.KeyValue;
import org.apache.paimon.manifest.FileSource;
import org.apache.paimon.mergetree.LevelSortedRun;
import org.apache.paimon.mergetree.Levels;
import org.apache.paimon.mergetree.SortedRun;
import org.apache.paimon.mergetree.compact.CompactStrategy;
import org.apache.paimon.mergetree.compact.EarlyFullCompaction;
import org.apache.paimon.mergetree.compact.ForceUpLevel0Compaction;
import org.apache.paimon.mergetree.compact.IntervalPartition;
import org.apache.paimon.mergetree.compact.MergeFunctionWrapper;
import org.apache.paimon.mergetree.compact.OffPeakHours;
import org.apache.paimon.mergetree.compact.SortMergeReader;
import org.apache.paimon.mergetree.compact.UniversalCompaction;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaManager;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.stats.SimpleStats;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;
import org.apache.paimon.types.BigIntType;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.IntType;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.FieldsComparator;
import org.apache.paimon.utils.IteratorRecordReader;
import org.apache.paimon.utils.SerializationUtils;
import org.apache.paimon.utils.UserDefinedSeqComparator;

/** Decisions of Java Paimon on cases without a table: a JSON list in, a JSON list out. */
public class Planner {

    private static final Comparator BY_INT_KEY =
            new Comparator() {
                public int compare(Object left, Object right) {
                    return Integer.compare(
                            ((InternalRow) left).getInt(0), ((InternalRow) right).getInt(0));
                }
            };

    private final String scratch;
    private FileStoreTable appendTable;

    public Planner(String scratch) {
        this.scratch = scratch;
    }

    private static long number(JsonNode node, String field, long otherwise) {
        return Rows.has(node, field) ? ((JsonNode) node.get(field)).asLong() : otherwise;
    }

    private static Long number(JsonNode node, String field) {
        return Rows.has(node, field) ? Long.valueOf(((JsonNode) node.get(field)).asLong()) : null;
    }

    private static boolean flag(JsonNode node, String field) {
        return Rows.has(node, field) && ((JsonNode) node.get(field)).asBoolean();
    }

    private static BinaryRow key(long value) {
        BinaryRow row = new BinaryRow(1);
        BinaryRowWriter writer = new BinaryRowWriter(row);
        writer.writeInt(0, (int) value);
        writer.complete();
        return row;
    }

    /** Unnamed files are named by position; without keys, position is also their only key. */
    private static DataFileMeta file(JsonNode node, int position, int level) {
        List none = new ArrayList();
        return DataFileMeta.create(
                Rows.has(node, "name")
                        ? ((JsonNode) node.get("name")).asText()
                        : String.valueOf(position),
                number(node, "size", 1),
                number(node, "rows", 1),
                key(number(node, "min", position)),
                key(number(node, "max", position)),
                SimpleStats.EMPTY_STATS,
                SimpleStats.EMPTY_STATS,
                number(node, "min_seq", position),
                number(node, "max_seq", position),
                0L,
                (int) number(node, "level", level),
                none,
                Timestamp.fromEpochMillis(number(node, "creation", 0)),
                number(node, "deletes"),
                (byte[]) null,
                FileSource.COMPACT,
                (List) null,
                (String) null,
                (Long) null,
                (List) null);
    }

    private static List files(JsonNode nodes) {
        List files = new ArrayList();
        for (int i = 0; i < nodes.size(); i++) {
            files.add(file((JsonNode) nodes.get(i), i, 0));
        }
        return files;
    }

    private static Levels levels(JsonNode testCase) {
        return new Levels(
                BY_INT_KEY,
                files((JsonNode) testCase.get("files")),
                (int) number(testCase, "num_levels", 6));
    }

    private static int numLevels(JsonNode testCase) {
        return Rows.has(testCase, "runs")
                ? (int) number(testCase, "num_levels", 6)
                : levels(testCase).numberOfLevels();
    }

    private static List runs(JsonNode testCase) {
        if (!Rows.has(testCase, "runs")) {
            return levels(testCase).levelSortedRuns();
        }
        List runs = new ArrayList();
        JsonNode nodes = (JsonNode) testCase.get("runs");
        int position = 0;
        for (int i = 0; i < nodes.size(); i++) {
            JsonNode run = (JsonNode) nodes.get(i);
            int level = (int) number(run, "level", 0);
            List files = new ArrayList();
            if (Rows.has(run, "files")) {
                JsonNode members = (JsonNode) run.get("files");
                for (int j = 0; j < members.size(); j++) {
                    files.add(file((JsonNode) members.get(j), position++, level));
                }
            } else {
                files.add(file(run, position++, level));
            }
            runs.add(new LevelSortedRun(level, SortedRun.fromSorted(files)));
        }
        return runs;
    }

    private static ArrayNode names(Iterable files) {
        ArrayNode names = Rows.MAPPER.createArrayNode();
        Iterator iterator = files.iterator();
        while (iterator.hasNext()) {
            names.add(((DataFileMeta) iterator.next()).fileName());
        }
        return names;
    }

    private static void addUnit(ArrayNode answers, Optional picked) {
        if (!picked.isPresent()) {
            answers.addNull();
            return;
        }
        CompactUnit unit = (CompactUnit) picked.get();
        ObjectNode answer = answers.addObject();
        answer.set("files", names(unit.files()));
        answer.put("output_level", unit.outputLevel());
        answer.put("file_rewrite", unit.fileRewrite());
    }

    public String pickUniversal(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < cases.size(); i++) {
            addUnit(answers, pickAtOneInstant((JsonNode) cases.get(i)));
        }
        return answers.toString();
    }

    /** Java asks the wall clock; the pick is repeated until it did not advance meanwhile. */
    private static Optional pickAtOneInstant(JsonNode testCase) {
        while (true) {
            long now = System.currentTimeMillis();
            Optional picked = pick(testCase, now);
            if (number(testCase, "optimization_interval") == null
                    || System.currentTimeMillis() == now) {
                return picked;
            }
        }
    }

    private static Optional pick(JsonNode testCase, long now) {
        Long interval = number(testCase, "optimization_interval");
        Long total = number(testCase, "total_size_threshold");
        Long incremental = number(testCase, "incremental_size_threshold");
        EarlyFullCompaction early = null;
        if (interval != null || total != null || incremental != null) {
            Long lastFull = number(testCase, "last_full");
            if (lastFull != null) {
                lastFull = Long.valueOf(now - (number(testCase, "now", 0) - lastFull.longValue()));
            }
            early = new EarlyFullCompaction(interval, total, incremental, lastFull);
        }
        OffPeakHours hours = null;
        if (Rows.has(testCase, "off_peak_ratio")) {
            hours = OffPeakHours.create(0, 24, (int) number(testCase, "off_peak_ratio", 0));
        }
        UniversalCompaction universal =
                new UniversalCompaction(
                        (int) number(testCase, "max_size_amp", 200),
                        (int) number(testCase, "size_ratio", 1),
                        (int) number(testCase, "trigger", 5),
                        early,
                        hours);
        CompactStrategy strategy = universal;
        if (flag(testCase, "force_up_level0")) {
            Long gentle = number(testCase, "gentle_interval");
            strategy =
                    new ForceUpLevel0Compaction(
                            universal, gentle == null ? null : Integer.valueOf(gentle.intValue()));
        }
        int numLevels = numLevels(testCase);
        List runs = runs(testCase);
        Optional picked = Optional.empty();
        long calls = number(testCase, "calls", 1);
        for (long call = 0; call < calls; call++) {
            picked = strategy.pick(numLevels, runs);
        }
        return picked;
    }

    private BucketedDvMaintainer deletionVectors(JsonNode testCase) throws Exception {
        if (!Rows.has(testCase, "deletion_vectors")) {
            return null;
        }
        BucketedDvMaintainer maintainer =
                BucketedDvMaintainer.factory(appendTable().store().newIndexFileHandler())
                        .create(BinaryRow.EMPTY_ROW, 0, new ArrayList());
        Iterator names =
                Rows.stringList((JsonNode) testCase.get("deletion_vectors")).iterator();
        while (names.hasNext()) {
            maintainer.notifyNewDeletion((String) names.next(), 0L);
        }
        return maintainer;
    }

    public String pickFull(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < cases.size(); i++) {
            JsonNode testCase = (JsonNode) cases.get(i);
            addUnit(
                    answers,
                    CompactStrategy.pickFullCompaction(
                            numLevels(testCase),
                            runs(testCase),
                            null,
                            deletionVectors(testCase),
                            flag(testCase, "force_rewrite_all_files")));
        }
        return answers.toString();
    }

    public String offPeak(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < cases.size(); i++) {
            int[] values = new int[4];
            for (int j = 0; j < 4; j++) {
                values[j] = ((JsonNode) ((JsonNode) cases.get(i)).get(j)).asInt();
            }
            OffPeakHours hours = OffPeakHours.create(values[0], values[1], values[2]);
            answers.add(hours == null ? 0 : hours.currentRatio(values[3]));
        }
        return answers.toString();
    }

    public String sortedRuns(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < cases.size(); i++) {
            ObjectNode answer = answers.addObject();
            Levels levels;
            try {
                levels = levels((JsonNode) cases.get(i));
            } catch (RuntimeException refused) {
                answer.put("error", refused.getMessage());
                continue;
            }
            ArrayNode list = answer.putArray("runs");
            Iterator runs = levels.levelSortedRuns().iterator();
            while (runs.hasNext()) {
                LevelSortedRun run = (LevelSortedRun) runs.next();
                ArrayNode pair = list.addArray();
                pair.add(run.level());
                pair.add(names(run.run().files()));
            }
            answer.put("num_levels", levels.numberOfLevels());
            answer.put("highest", levels.nonEmptyHighestLevel());
        }
        return answers.toString();
    }

    public String intervalPartition(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < cases.size(); i++) {
            ArrayNode answer = answers.addArray();
            Iterator sections =
                    new IntervalPartition(files((JsonNode) cases.get(i)), BY_INT_KEY)
                            .partition()
                            .iterator();
            while (sections.hasNext()) {
                ArrayNode section = answer.addArray();
                Iterator runs = ((List) sections.next()).iterator();
                while (runs.hasNext()) {
                    section.add(names(((SortedRun) runs.next()).files()));
                }
            }
        }
        return answers.toString();
    }

    /** An empty table, for classes that cannot be had without one. */
    private FileStoreTable appendTable() throws Exception {
        if (appendTable == null) {
            Path path = new Path(scratch + "/planner.db/append");
            Schema.Builder schema = Schema.newBuilder();
            schema.column("a", new IntType());
            schema.option("bucket", "-1");
            new SchemaManager(LocalFileIO.create(), path).createTable(schema.build());
            appendTable = FileStoreTableFactory.create(LocalFileIO.create(), path);
        }
        return appendTable;
    }

    private FileStoreTable appendTable(JsonNode testCase) throws Exception {
        Map options = new HashMap();
        options.put("target-file-size", number(testCase, "target_file_size", 256L << 20) + " b");
        options.put(
                "source.split.open-file-cost",
                number(testCase, "open_file_cost", 4L << 20) + " b");
        options.put("compaction.min.file-num", String.valueOf(number(testCase, "min_file_num", 5)));
        if (Rows.has(testCase, "small_file_ratio")) {
            options.put(
                    "compaction.small-file-ratio",
                    ((JsonNode) testCase.get("small_file_ratio")).asText());
        }
        return appendTable().copy(options);
    }

    public String packAppend(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        Method notify =
                AppendCompactCoordinator.class.getDeclaredMethod(
                        "notifyNewFiles", new Class[] {BinaryRow.class, List.class});
        notify.setAccessible(true);
        Method plan =
                AppendCompactCoordinator.class.getDeclaredMethod("compactPlan", new Class[0]);
        plan.setAccessible(true);
        for (int i = 0; i < cases.size(); i++) {
            JsonNode testCase = (JsonNode) cases.get(i);
            AppendCompactCoordinator coordinator =
                    new AppendCompactCoordinator(appendTable(testCase), false);
            notify.invoke(
                    coordinator,
                    new Object[] {BinaryRow.EMPTY_ROW, files((JsonNode) testCase.get("files"))});
            List tasks = null;
            long rounds = number(testCase, "rounds", 1);
            for (long round = 0; round < rounds; round++) {
                tasks = (List) plan.invoke(coordinator, new Object[0]);
            }
            ArrayNode answer = answers.addArray();
            for (int j = 0; j < tasks.size(); j++) {
                answer.add(names(((AppendCompactTask) tasks.get(j)).compactBefore()));
            }
        }
        return answers.toString();
    }

    public String pickBucketedAppend(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        try {
            for (int i = 0; i < cases.size(); i++) {
                JsonNode testCase = (JsonNode) cases.get(i);
                CoreOptions options = appendTable(testCase).coreOptions();
                final List rewritten = new ArrayList();
                BucketedAppendCompactManager manager =
                        new BucketedAppendCompactManager(
                                executor,
                                files((JsonNode) testCase.get("files")),
                                deletionVectors(testCase),
                                options.compactionMinFileNum(),
                                options.targetFileSize(false),
                                options.compactionFileSize(false),
                                flag(testCase, "force_rewrite_all_files"),
                                new BucketedAppendCompactManager.CompactRewriter() {
                                    public List rewrite(List before) {
                                        rewritten.add(new ArrayList(before));
                                        return new ArrayList();
                                    }
                                },
                                null);
                manager.triggerCompaction(flag(testCase, "full"));
                manager.getCompactionResult(true);
                if (rewritten.isEmpty()) {
                    answers.addNull();
                } else {
                    answers.add(names((List) rewritten.get(0)));
                }
            }
        } finally {
            executor.shutdown();
        }
        return answers.toString();
    }

    public String mergeOrder(String json) throws Exception {
        JsonNode cases = Rows.MAPPER.readTree(json);
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        RowType valueType =
                RowType.of(new DataType[] {new IntType(), new IntType(), new BigIntType()});
        for (int i = 0; i < cases.size(); i++) {
            JsonNode testCase = (JsonNode) cases.get(i);
            FieldsComparator userSequence = null;
            if (flag(testCase, "user_sequence")) {
                userSequence =
                        UserDefinedSeqComparator.create(
                                valueType, new int[] {2}, !flag(testCase, "descending"));
            }
            SortMergeReader reader =
                    SortMergeReader.createSortMergeReader(
                            readers((JsonNode) testCase.get("readers")),
                            BY_INT_KEY,
                            userSequence,
                            new Recorder(),
                            flag(testCase, "min_heap")
                                    ? CoreOptions.SortEngine.MIN_HEAP
                                    : CoreOptions.SortEngine.LOSER_TREE);
            ArrayNode answer = answers.addArray();
            RecordReader.RecordIterator batch = reader.readBatch();
            while (batch != null) {
                ArrayNode key = (ArrayNode) batch.next();
                while (key != null) {
                    answer.add(key);
                    key = (ArrayNode) batch.next();
                }
                batch.releaseBatch();
                batch = reader.readBatch();
            }
            reader.close();
        }
        return answers.toString();
    }

    private static List readers(JsonNode nodes) {
        List readers = new ArrayList();
        for (int i = 0; i < nodes.size(); i++) {
            JsonNode records = (JsonNode) nodes.get(i);
            List list = new ArrayList();
            for (int j = 0; j < records.size(); j++) {
                JsonNode record = (JsonNode) records.get(j);
                GenericRow value = new GenericRow(3);
                value.setField(0, Integer.valueOf(i));
                value.setField(1, Integer.valueOf(j));
                JsonNode user = (JsonNode) record.get(1);
                value.setField(2, user.isNull() ? null : Long.valueOf(user.asLong()));
                list.add(
                        new KeyValue()
                                .replace(
                                        key(((JsonNode) record.get(0)).asInt()),
                                        ((JsonNode) record.get(2)).asLong(),
                                        RowKind.INSERT,
                                        value));
            }
            readers.add(new IteratorRecordReader(list.iterator()));
        }
        return readers;
    }

    /** A merge function whose result tells which records it was fed, in their order. */
    public static class Recorder implements MergeFunctionWrapper {

        private ArrayNode answer;

        public void reset() {
            answer = null;
        }

        public void add(KeyValue record) {
            if (answer == null) {
                answer = Rows.MAPPER.createArrayNode();
                answer.add(record.key().getInt(0));
                answer.addArray();
            }
            ArrayNode place = ((ArrayNode) answer.get(1)).addArray();
            place.add(record.value().getInt(0));
            place.add(record.value().getInt(1));
        }

        public Object getResult() {
            return answer;
        }
    }

    public String binaryRows(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        RowType type = Rows.rowType((JsonNode) args.get("types"));
        BucketFunction function =
                BucketFunction.create(
                        CoreOptions.BucketFunctionType.valueOf(
                                ((JsonNode) args.get("bucket_function")).asText().toUpperCase()),
                        type);
        JsonNode rows = (JsonNode) args.get("rows");
        ArrayNode answers = Rows.MAPPER.createArrayNode();
        for (int i = 0; i < rows.size(); i++) {
            BinaryRow row = Rows.binaryRow((JsonNode) rows.get(i), type);
            ArrayNode answer = answers.addArray();
            answer.add(Rows.hex(row));
            answer.add(row.hashCode());
            if (Rows.has(args, "num_buckets")) {
                answer.add(function.bucket(row, ((JsonNode) args.get("num_buckets")).asInt()));
            } else {
                answer.addNull();
            }
        }
        return answers.toString();
    }

    public String decodeRows(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        RowType type = Rows.rowType((JsonNode) args.get("types"));
        JsonNode rows = (JsonNode) args.get("rows");
        java.io.StringWriter text = new java.io.StringWriter();
        JsonGenerator out = Rows.MAPPER.getFactory().createGenerator(text);
        out.writeStartArray();
        for (int i = 0; i < rows.size(); i++) {
            byte[] bytes = Rows.unhex(((JsonNode) rows.get(i)).asText());
            Rows.writeRow(out, SerializationUtils.deserializeBinaryRow(bytes), type);
        }
        out.writeEndArray();
        out.flush();
        return text.toString();
    }

    public String sortRows(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        RowType type = Rows.rowType((JsonNode) args.get("types"));
        final RecordComparator comparator =
                CodeGenUtils.newRecordComparator(type.getFieldTypes());
        JsonNode nodes = (JsonNode) args.get("rows");
        final InternalRow[] rows = new InternalRow[nodes.size()];
        Integer[] positions = new Integer[nodes.size()];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = Rows.binaryRow((JsonNode) nodes.get(i), type);
            positions[i] = Integer.valueOf(i);
        }
        Arrays.sort(
                positions,
                new Comparator() {
                    public int compare(Object left, Object right) {
                        return comparator.compare(
                                rows[((Integer) left).intValue()],
                                rows[((Integer) right).intValue()]);
                    }
                });
        return Rows.MAPPER.writeValueAsString(positions);
    }
}
