import java.lang.reflect.Field;
import java.util.Collections;
import java.util.Map;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.options.Options;
import org.apache.paimon.rest.RESTApi;
import org.apache.paimon.rest.RESTCatalogServer;
import org.apache.paimon.rest.auth.AuthProvider;
import org.apache.paimon.rest.auth.BearTokenAuthProvider;
import org.apache.paimon.rest.responses.ConfigResponse;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaManager;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.Instant;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.types.DataTypes;

/** Paimon's own REST server for tests, one at a time. */
public class RestServer {

    private RESTCatalogServer server;

    public RestServer(String scratch) {}

    /** Serves the warehouse below `path`; the answer is the server's address. */
    public String start(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Map defaults = Rows.strings((JsonNode) args.get("defaults"));
        Map overrides = Rows.strings((JsonNode) args.get("overrides"));
        AuthProvider auth = new BearTokenAuthProvider(((JsonNode) args.get("token")).asText());
        ConfigResponse config = new ConfigResponse(defaults, overrides);
        server =
                new RESTCatalogServer(
                        ((JsonNode) args.get("path")).asText(),
                        auth,
                        config,
                        ((JsonNode) args.get("warehouse")).asText());
        server.start();
        return server.getUrl();
    }

    public String stop(String json) throws Exception {
        server.shutdown();
        return null;
    }

    /** A table db.NAME with the column k, v and p; `options` may make it another kind of table. */
    public String createTable(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Options options = new Options(Rows.strings((JsonNode) args.get("catalog")));
        Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        catalog.createDatabase("db", true);
        Schema.Builder schema = Schema.newBuilder();
        schema.column("k", DataTypes.BIGINT().notNull());
        schema.column("v", DataTypes.BIGINT());
        schema.column("p", DataTypes.STRING());
        schema.partitionKeys(Collections.singletonList("p"));
        schema.options(Rows.strings((JsonNode) args.get("options")));
        String name = ((JsonNode) args.get("name")).asText();
        String path = (String) schema.build().options().get("path");
        if (path != null) {
            // Of an external table the catalog finds the schema there.
            SchemaManager manager = new SchemaManager(LocalFileIO.create(), new Path(path));
            manager.createTable(schema.build(), true);
        }
        catalog.createTable(Identifier.create("db", name), schema.build(), false);
        catalog.close();
        return null;
    }

    /** Writes a file for each of the rows, [k, v, p], in one commit each. */
    public String write(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Options options = new Options(Rows.strings((JsonNode) args.get("catalog")));
        Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        String name = ((JsonNode) args.get("name")).asText();
        Table table = catalog.getTable(Identifier.create("db", name));
        JsonNode rows = (JsonNode) args.get("rows");
        for (int i = 0; i < rows.size(); i++) {
            JsonNode row = (JsonNode) rows.get(i);
            BatchWriteBuilder builder = table.newBatchWriteBuilder();
            BatchTableWrite write = builder.newWrite();
            BatchTableCommit commit = builder.newCommit();
            JsonNode p = (JsonNode) row.get(2);
            GenericRow values = new GenericRow(3);
            values.setField(0, Long.valueOf(((JsonNode) row.get(0)).asLong()));
            values.setField(1, Long.valueOf(((JsonNode) row.get(1)).asLong()));
            values.setField(2, p.isNull() ? null : BinaryString.fromString(p.asText()));
            write.write(values);
            commit.commit(write.prepareCommit());
            write.close();
            commit.close();
        }
        catalog.close();
        return null;
    }

    /** What the server has added up for each partition of a table, as JSON. */
    public String partitions(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Field field = RESTCatalogServer.class.getDeclaredField("tablePartitionsStore");
        field.setAccessible(true);
        Map store = (Map) field.get(server);
        return RESTApi.toJson(store.get(((JsonNode) args.get("table")).asText()));
    }

    public String rollBack(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Options options = new Options(Rows.strings((JsonNode) args.get("catalog")));
        Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        String name = ((JsonNode) args.get("name")).asText();
        long id = ((JsonNode) args.get("id")).asLong();
        catalog.rollbackTo(Identifier.create("db", name), Instant.snapshot(Long.valueOf(id)));
        catalog.close();
        return null;
    }

    /** The next commit takes effect and is answered with 500. */
    public String failAfterCommit(String json) throws Exception {
        RESTCatalogServer.commitSuccessThrowException = true;
        return null;
    }

    public String forbid(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        server.addNoPermissionTable(Identifier.fromString(((JsonNode) args.get("table")).asText()));
        return null;
    }
}
