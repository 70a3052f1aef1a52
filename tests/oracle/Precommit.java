import java.io.BufferedReader;
import java.io.StringReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import org.apache.paimon.data.GenericRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.flink.compact.changelog.ChangelogCompactTask;
import org.apache.paimon.flink.sink.Committable;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.options.MemorySize;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.types.RowKind;

/**
 * Writes as a job of Flink with `precommit-compact`: its own task puts the changelog files of a
 * commit together, without a cluster. Janino compiles this: no lambdas, raw types, casts.
 */
public class Precommit {

    private final String scratch;

    public Precommit(String scratch) {
        this.scratch = scratch;
    }

    /** Lines are [kind, row]; all are one commit to a table without partitions. */
    public void write(String json, String lines) throws Exception {
        FileStoreTable table = Oracle.open(Rows.MAPPER.readTree(json));
        TableWriteImpl write = (TableWriteImpl) table.newWrite("precommit");
        TableCommitImpl commit = table.newCommit("precommit");
        IOManager io = IOManager.create(scratch);
        write.withIOManager(io);
        ExecutorService executor = Executors.newFixedThreadPool(1);
        try {
            BufferedReader reader = new BufferedReader(new StringReader(lines));
            String line = reader.readLine();
            while (line != null) {
                JsonNode node = Rows.MAPPER.readTree(line);
                GenericRow row = Rows.row((JsonNode) node.get(1), table.rowType());
                row.setRowKind(RowKind.fromShortString(((JsonNode) node.get(0)).asText()));
                write.write(row);
                line = reader.readLine();
            }
            long id = ((JsonNode) Rows.MAPPER.readTree(json).get("identifier")).asLong();
            commit.commit(id, merged(table, id, write.prepareCommit(true, id), executor));
        } finally {
            executor.shutdown();
            write.close();
            commit.close();
            io.close();
        }
    }

    private static List merged(
            FileStoreTable table, long id, List messages, ExecutorService executor)
            throws Exception {
        List out = new ArrayList();
        Map added = new HashMap();
        Map compacted = new HashMap();
        CommitMessageImpl any = null;
        for (Object each : messages) {
            CommitMessageImpl message = (CommitMessageImpl) each;
            any = message;
            DataIncrement data = message.newFilesIncrement();
            CompactIncrement compact = message.compactIncrement();
            Integer bucket = Integer.valueOf(message.bucket());
            if (!data.changelogFiles().isEmpty()) {
                added.put(bucket, new ArrayList(data.changelogFiles()));
            }
            if (!compact.changelogFiles().isEmpty()) {
                compacted.put(bucket, new ArrayList(compact.changelogFiles()));
            }
            out.add(
                    new CommitMessageImpl(
                            message.partition(),
                            message.bucket(),
                            message.totalBuckets(),
                            new DataIncrement(
                                    data.newFiles(), data.deletedFiles(), Collections.emptyList()),
                            new CompactIncrement(
                                    compact.compactBefore(),
                                    compact.compactAfter(),
                                    Collections.emptyList())));
        }
        if (added.isEmpty() && compacted.isEmpty()) {
            return out;
        }
        ChangelogCompactTask task =
                new ChangelogCompactTask(
                        id, any.partition(), any.totalBuckets().intValue(), added, compacted);
        for (Object each : task.doCompact(table, executor, MemorySize.ofMebiBytes(64))) {
            out.add(((Committable) each).commitMessage());
        }
        return out;
    }
}
