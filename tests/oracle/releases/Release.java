import java.io.BufferedReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.options.Options;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.reader.RecordReaderIterator;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;

/**
 * Tables through the public API that all releases since 0.8 have: catalog, batch write, batch read.
 * Janino compiles this: no lambdas, raw types, casts.
 */
public class Release {

    private final String scratch;

    public Release(String scratch) {
        this.scratch = scratch;
    }

    private static JsonNode parse(String json) throws Exception {
        return Rows.MAPPER.readTree(json);
    }

    private static Catalog catalog(JsonNode args) {
        Options options = new Options();
        options.set("warehouse", ((JsonNode) args.get("warehouse")).asText());
        return CatalogFactory.createCatalog(CatalogContext.create(options));
    }

    private static Identifier identifier(JsonNode args) {
        return Identifier.create(
                ((JsonNode) args.get("database")).asText(), ((JsonNode) args.get("table")).asText());
    }

    private static Table open(JsonNode args) throws Exception {
        Table table = catalog(args).getTable(identifier(args));
        return table.copy(Rows.strings((JsonNode) args.get("options")));
    }

    public void createTable(String json) throws Exception {
        JsonNode args = parse(json);
        Schema.Builder schema = Schema.newBuilder();
        JsonNode columns = (JsonNode) args.get("columns");
        for (int i = 0; i < columns.size(); i++) {
            JsonNode column = (JsonNode) columns.get(i);
            schema.column(
                    ((JsonNode) column.get(0)).asText(), Rows.type((JsonNode) column.get(1)));
        }
        schema.primaryKey(Rows.stringList((JsonNode) args.get("primary_key")));
        schema.partitionKeys(Rows.stringList((JsonNode) args.get("partition_by")));
        schema.options(Rows.strings((JsonNode) args.get("options")));
        Catalog catalog = catalog(args);
        catalog.createDatabase(((JsonNode) args.get("database")).asText(), true);
        catalog.createTable(identifier(args), schema.build(), false);
    }

    /** Lines are [kind, row]; all are one commit. */
    public void write(String json, String lines) throws Exception {
        Table table = open(parse(json));
        RowType type = table.rowType();
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        IOManager io = IOManager.create(scratch);
        BatchTableWrite write = (BatchTableWrite) builder.newWrite().withIOManager(io);
        BatchTableCommit commit = builder.newCommit();
        try {
            BufferedReader reader = new BufferedReader(new StringReader(lines));
            String line = reader.readLine();
            while (line != null) {
                JsonNode node = parse(line);
                GenericRow row = Rows.row((JsonNode) node.get(1), type);
                row.setRowKind(RowKind.fromShortString(((JsonNode) node.get(0)).asText()));
                write.write(row);
                line = reader.readLine();
            }
            commit.commit(write.prepareCommit());
        } finally {
            write.close();
            commit.close();
            io.close();
        }
    }

    /** The release's own full compaction of the unpartitioned table's buckets. */
    public void compact(String json) throws Exception {
        JsonNode args = parse(json);
        Map options = new LinkedHashMap();
        options.put("write-only", "false");
        Table table = open(args).copy(options);
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        IOManager io = IOManager.create(scratch);
        BatchTableWrite write = (BatchTableWrite) builder.newWrite().withIOManager(io);
        BatchTableCommit commit = builder.newCommit();
        try {
            int buckets = ((JsonNode) args.get("buckets")).asInt();
            for (int bucket = 0; bucket < buckets; bucket++) {
                write.compact(BinaryRow.EMPTY_ROW, bucket, true);
            }
            commit.commit(write.prepareCommit());
        } finally {
            write.close();
            commit.close();
            io.close();
        }
    }

    /** Lines of rows of a batch read. */
    public String read(String json) throws Exception {
        Table table = open(parse(json));
        StringWriter text = new StringWriter();
        JsonGenerator out = Rows.MAPPER.getFactory().createGenerator(text);
        out.setRootValueSeparator(null);
        ReadBuilder builder = table.newReadBuilder();
        RecordReader reader =
                builder.newRead().createReader((List) builder.newScan().plan().splits());
        RecordReaderIterator rows = new RecordReaderIterator(reader);
        try {
            while (rows.hasNext()) {
                Rows.writeRow(out, (InternalRow) rows.next(), table.rowType());
                out.writeRaw('\n');
            }
        } finally {
            rows.close();
        }
        out.flush();
        return text.toString();
    }
}
