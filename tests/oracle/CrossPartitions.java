import java.io.BufferedReader;
import java.io.StringReader;
import java.util.List;
import java.util.UUID;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

import org.apache.paimon.crosspartition.GlobalIndexAssigner;
import org.apache.paimon.crosspartition.IndexBootstrap;
import org.apache.paimon.crosspartition.KeyPartPartitionKeyExtractor;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.PartitionKeyExtractor;
import org.apache.paimon.table.sink.RowPartitionAllPrimaryKeyExtractor;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.types.RowKind;

/** Writes to tables whose primary key lacks partition columns, as GlobalDynamicBucketSink does. */
public class CrossPartitions {

    private final String scratch;

    public CrossPartitions(String scratch) {
        this.scratch = scratch;
    }

    /**
     * One job with args "assigners". Lines are [kind, row]; [] is a checkpoint, and the end one
     * more. "is_batch": no row is assigned before the last has come.
     */
    public void write(String json, String lines) throws Exception {
        JsonNode args = Oracle.parse(json);
        FileStoreTable table = Oracle.open(args);
        boolean isBatch = ((JsonNode) args.get("is_batch")).asBoolean();
        String user = UUID.randomUUID().toString();
        IOManager io = IOManager.create(scratch);
        final TableWriteImpl write = (TableWriteImpl) table.newWrite(user).withIOManager(io);
        TableCommitImpl commit = table.newCommit(user);
        GlobalIndexAssigner[] assigners =
                new GlobalIndexAssigner[((JsonNode) args.get("assigners")).asInt()];
        try {
            for (int i = 0; i < assigners.length; i++) {
                assigners[i] = new GlobalIndexAssigner(table);
                assigners[i].open(0L, null, io, assigners.length, i, into(write));
            }
            bootstrap(table, assigners);
            PartitionKeyExtractor keys = new RowPartitionAllPrimaryKeyExtractor(table.schema());
            BufferedReader reader = new BufferedReader(new StringReader(lines));
            long checkpoint = 0;
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                JsonNode node = Oracle.parse(line);
                if (node.size() == 0) {
                    endBootstrap(assigners, false);
                    checkpoint(write, commit, checkpoint++);
                    continue;
                }
                GenericRow row = Rows.row((JsonNode) node.get(1), table.rowType());
                row.setRowKind(RowKind.fromShortString(((JsonNode) node.get(0)).asText()));
                int hash = keys.trimmedPrimaryKey(row).hashCode();
                assigners[Math.abs(hash % assigners.length)].processInput(row);
            }
            endBootstrap(assigners, isBatch);
            checkpoint(write, commit, checkpoint);
        } finally {
            for (int i = 0; i < assigners.length; i++) {
                assigners[i].close();
            }
            write.close();
            commit.close();
            io.close();
        }
    }

    private static BiConsumer into(final TableWriteImpl write) {
        return new BiConsumer() {
            public void accept(Object row, Object bucket) {
                try {
                    write.write((InternalRow) row, ((Integer) bucket).intValue());
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            }
        };
    }

    /** Tells each assigner where the keys are that it is asked for. */
    private static void bootstrap(FileStoreTable table, final GlobalIndexAssigner[] assigners)
            throws Exception {
        final PartitionKeyExtractor keys = new KeyPartPartitionKeyExtractor(table.schema());
        RecordReader reader = new IndexBootstrap(table).bootstrap(1, 0);
        awaitItsThreads();
        reader.forEachRemaining(
                new Consumer() {
                    public void accept(Object row) {
                        int hash = keys.trimmedPrimaryKey(row).hashCode();
                        try {
                            assigners[Math.abs(hash % assigners.length)].bootstrapKey(
                                    (InternalRow) row);
                        } catch (Exception e) {
                            throw new RuntimeException(e);
                        }
                    }
                });
    }

    /** Whoever asks for rows while they read waits for two seconds if they find no more. */
    private static void awaitItsThreads() throws Exception {
        boolean areReading = true;
        while (areReading) {
            Thread.sleep(5);
            areReading = false;
            Thread[] threads = new Thread[2 * Thread.activeCount() + 16];
            int count = Thread.enumerate(threads);
            for (int i = 0; i < count; i++) {
                // Those of its pool that have nothing left to do wait for more.
                areReading |=
                        threads[i].getName().contains("-parallel")
                                && threads[i].getState() != Thread.State.WAITING;
            }
        }
    }

    private static void endBootstrap(GlobalIndexAssigner[] assigners, boolean isEnd)
            throws Exception {
        for (int i = 0; i < assigners.length; i++) {
            if (assigners[i].inBoostrap()) {
                assigners[i].endBoostrap(isEnd);
            }
        }
    }

    private static void checkpoint(TableWriteImpl write, TableCommitImpl commit, long identifier)
            throws Exception {
        List messages = write.prepareCommit(true, identifier);
        commit.commit(identifier, messages);
    }
}
