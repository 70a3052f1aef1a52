import java.util.List;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.options.Options;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.types.DataTypes;

/** Writes to a table of a catalog that is described by its options. */
public class JdbcWriter {

    public JdbcWriter(String scratch) {}

    private static JsonNode parse(String json) throws Exception {
        return Rows.MAPPER.readTree(json);
    }

    private static Catalog open(JsonNode args) {
        Options options = new Options(Rows.strings((JsonNode) args.get("catalog")));
        return CatalogFactory.createCatalog(CatalogContext.create(options));
    }

    public void createTable(String json) throws Exception {
        Catalog catalog = open(parse(json));
        catalog.createDatabase("db", true);
        Schema.Builder schema = Schema.newBuilder();
        schema.column("k", DataTypes.BIGINT().notNull());
        schema.column("v", DataTypes.BIGINT());
        schema.primaryKey(java.util.Collections.singletonList("k"));
        schema.option("bucket", "1");
        schema.option("write-only", "true");
        catalog.createTable(Identifier.create("db", "t"), schema.build(), false);
        catalog.close();
    }

    /** Commit n gives each key that is not left out by it the value n; see the test. */
    public void write(String json) throws Exception {
        JsonNode args = parse(json);
        String user = ((JsonNode) args.get("user")).asText();
        int commits = ((JsonNode) args.get("commits")).asInt();
        int keys = ((JsonNode) args.get("keys")).asInt();
        long pause = ((JsonNode) args.get("pause_ms")).asLong();
        long first = "java-2".equals(user) ? 1000L : 0L;
        Catalog catalog = open(args);
        FileStoreTable table = (FileStoreTable) catalog.getTable(Identifier.create("db", "t"));
        TableWriteImpl write = (TableWriteImpl) table.newWrite(user);
        TableCommitImpl commit = table.newCommit(user);
        for (int n = 0; n < commits; n++) {
            for (int key = 0; key < keys; key++) {
                if ((key + n) % 3 != 0) {
                    GenericRow row = new GenericRow(2);
                    row.setField(0, Long.valueOf(first + key));
                    row.setField(1, Long.valueOf(n));
                    write.write(row);
                }
            }
            List messages = write.prepareCommit(true, n);
            commit.commit(n, messages);
            Thread.sleep(pause);
        }
        write.close();
        commit.close();
        catalog.close();
    }
}
