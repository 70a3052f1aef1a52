import java.io.BufferedReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongConsumer;

import org.apache.paimon.Snapshot;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.deletionvectors.Bitmap64DeletionVector;
import org.apache.paimon.deletionvectors.BitmapDeletionVector;
import org.apache.paimon.deletionvectors.DeletionVector;
import org.apache.paimon.deletionvectors.DeletionVectorsIndexFile;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.index.IndexFileHandler;
import org.apache.paimon.index.IndexFileMeta;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.IndexManifestFile;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.reader.RecordReaderIterator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.system.FilesTable;

/** Deletion vectors, as Java Paimon reads them and as Spark's DELETE and UPDATE write them. */
public class Vectors {

    public Vectors(String scratch) {}

    /** {file: [deleted positions]} of the latest snapshot. */
    public String deletionVectors(String json) throws Exception {
        IndexFileHandler handler =
                Oracle.open(Oracle.parse(json)).store().newIndexFileHandler();
        ObjectNode result = Rows.MAPPER.createObjectNode();
        Iterator entries =
                handler.scan(DeletionVectorsIndexFile.DELETION_VECTORS_INDEX).iterator();
        while (entries.hasNext()) {
            Map vectors = handler.readAllDeletionVectors((IndexManifestEntry) entries.next());
            Iterator files = vectors.entrySet().iterator();
            while (files.hasNext()) {
                Map.Entry file = (Map.Entry) files.next();
                final ArrayNode positions = result.putArray((String) file.getKey());
                ((DeletionVector) file.getValue())
                        .forEachDeletedPosition(
                                new LongConsumer() {
                                    public void accept(long position) {
                                        positions.add(position);
                                    }
                                });
            }
        }
        return result.toString();
    }

    /** The rows of the system table `$files`. */
    public String filesTable(String json) throws Exception {
        FilesTable files = new FilesTable(Oracle.open(Oracle.parse(json)));
        ReadBuilder builder = files.newReadBuilder();
        List splits = builder.newScan().plan().splits();
        StringWriter text = new StringWriter();
        JsonGenerator out = Rows.MAPPER.getFactory().createGenerator(text);
        out.writeStartArray();
        RecordReaderIterator rows =
                new RecordReaderIterator(builder.newRead().createReader(splits));
        try {
            while (rows.hasNext()) {
                Rows.writeRow(out, (InternalRow) rows.next(), files.rowType());
            }
        } finally {
            rows.close();
        }
        out.writeEndArray();
        out.close();
        return text.toString();
    }

    /**
     * Marks rows of an append table as deleted, {"positions": {file: [position]}}, and appends the
     * rows of `lines`, in one commit.
     */
    public Long deletePositions(String json, String lines) throws Exception {
        JsonNode args = Oracle.parse(json);
        FileStoreTable table = Oracle.open(args);
        String user = Oracle.commitUser(args);
        TableWriteImpl write = (TableWriteImpl) table.newWrite(user);
        TableCommitImpl commit = table.newCommit(user);
        try {
            List messages = marking(table, (JsonNode) args.get("positions"));
            commit.withOperation(
                    lines.isEmpty() ? Snapshot.Operation.DELETE : Snapshot.Operation.UPDATE);
            BufferedReader reader = new BufferedReader(new StringReader(lines));
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                write.write(Rows.row(Oracle.parse(line), table.rowType()));
            }
            messages.addAll(write.prepareCommit(true, Oracle.identifier(args)));
            return Oracle.commit(table, args, commit, messages);
        } finally {
            write.close();
            commit.close();
        }
    }

    private static List marking(FileStoreTable table, JsonNode deletions) {
        Snapshot latest = table.snapshotManager().latestSnapshot();
        // One index writer per bucket; where buckets are unknown, per partition.
        Map maintainers = new LinkedHashMap();
        Iterator entries = table.newSnapshotReader().readFileIterator();
        while (entries.hasNext()) {
            ManifestEntry entry = (ManifestEntry) entries.next();
            String file = entry.file().fileName();
            if (!Rows.has(deletions, file)) {
                continue;
            }
            List key = new ArrayList();
            key.add(entry.partition().copy());
            key.add(Integer.valueOf(entry.bucket()));
            if (!maintainers.containsKey(key)) {
                maintainers.put(
                        key, maintainer(table, latest, entry.partition().copy(), entry.bucket()));
            }
            ((BaseAppendDeleteFileMaintainer) maintainers.get(key))
                    .notifyNewDeletionVector(
                            file, vector(table, (JsonNode) deletions.get(file)));
        }
        List messages = new ArrayList();
        Iterator buckets = maintainers.values().iterator();
        while (buckets.hasNext()) {
            messages.add(message((BaseAppendDeleteFileMaintainer) buckets.next()));
        }
        return messages;
    }

    private static BaseAppendDeleteFileMaintainer maintainer(
            FileStoreTable table, Snapshot latest, BinaryRow partition, int bucket) {
        IndexFileHandler handler = table.store().newIndexFileHandler();
        return table.bucketMode() == BucketMode.BUCKET_UNAWARE
                ? (BaseAppendDeleteFileMaintainer)
                        BaseAppendDeleteFileMaintainer.forUnawareAppend(handler, latest, partition)
                : (BaseAppendDeleteFileMaintainer)
                        BaseAppendDeleteFileMaintainer.forBucketedAppend(
                                handler, latest, partition, bucket);
    }

    private static DeletionVector vector(FileStoreTable table, JsonNode positions) {
        DeletionVector vector =
                table.coreOptions().deletionVectorBitmap64()
                        ? (DeletionVector) new Bitmap64DeletionVector()
                        : (DeletionVector) new BitmapDeletionVector();
        for (int i = 0; i < positions.size(); i++) {
            vector.delete(((JsonNode) positions.get(i)).asLong());
        }
        return vector;
    }

    /** Without a number of buckets, as Spark's. */
    private static CommitMessageImpl message(BaseAppendDeleteFileMaintainer maintainer) {
        List added = new ArrayList();
        List deleted = new ArrayList();
        Iterator indexes = maintainer.persist().iterator();
        while (indexes.hasNext()) {
            IndexManifestEntry index = (IndexManifestEntry) indexes.next();
            (index.kind() == FileKind.ADD ? added : deleted).add(index.indexFile());
        }
        List empty = new ArrayList();
        return new CommitMessageImpl(
                maintainer.getPartition(),
                maintainer.getBucket(),
                null,
                new DataIncrement(empty, empty, empty, added, deleted),
                CompactIncrement.emptyIncrement());
    }

    /**
     * Writes an index file with {"vectors": {file: [position]}} of a bucket, and an index manifest
     * that has it behind all entries of the latest snapshot; the name of the manifest.
     */
    public String manifestWithVectors(String json) throws Exception {
        JsonNode args = Oracle.parse(json);
        FileStoreTable table = Oracle.open(args);
        IndexFileHandler handler = table.store().newIndexFileHandler();
        BinaryRow partition =
                Rows.binaryRow(
                        (JsonNode) args.get("partition"), table.schema().logicalPartitionType());
        int bucket = ((JsonNode) args.get("bucket")).asInt();
        Map vectors = new HashMap();
        Iterator files = ((JsonNode) args.get("vectors")).fieldNames();
        while (files.hasNext()) {
            String file = (String) files.next();
            JsonNode positions = (JsonNode) ((JsonNode) args.get("vectors")).get(file);
            vectors.put(file, vector(table, positions));
        }
        IndexFileMeta written = handler.dvIndex(partition, bucket).writeSingleFile(vectors);
        List entries = new ArrayList(handler.scanEntries());
        entries.add(new IndexManifestEntry(FileKind.ADD, partition, bucket, written));
        IndexManifestFile manifests =
                (IndexManifestFile) table.store().indexManifestFileFactory().create();
        return manifests.writeWithoutRolling(entries);
    }
}
