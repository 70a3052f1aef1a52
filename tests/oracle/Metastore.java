import java.net.InetSocketAddress;
import java.util.Collections;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.api.ThriftHiveMetastore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.options.Options;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.types.DataTypes;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A Hive metastore over a database in memory, in a thread of this JVM. */
public class Metastore {

    public Metastore(String scratch) {}

    /** Starts one; the properties are those of hive-site.xml. The answer is its port. */
    public int start(String json) throws Exception {
        // HiveConf takes those of its own keys from the system's properties.
        System.getProperties().putAll(Rows.strings((JsonNode) Rows.MAPPER.readTree(json)));
        HiveConf conf = new HiveConf();
        TxnDbUtil.prepDb(conf);
        // HiveMetaStore's own main would listen to every address of the machine.
        TServerSocket socket = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
        IHMSHandler handler = (IHMSHandler) HiveMetaStore.newRetryingHMSHandler("test", conf, true);
        TThreadPoolServer.Args args = new TThreadPoolServer.Args(socket);
        args.processor(new ThriftHiveMetastore.Processor(handler));
        final TThreadPoolServer server = new TThreadPoolServer(args);
        Thread thread =
                new Thread(
                        new Runnable() {
                            public void run() {
                                server.serve();
                            }
                        });
        thread.setDaemon(true);
        thread.start();
        return socket.getServerSocket().getLocalPort();
    }

    /** What a metastore's own thread does now and then: drops locks that nobody has prolonged. */
    public void housekeeping(String json) throws Exception {
        TxnUtils.getTxnStore(new HiveConf()).performTimeOuts();
    }

    private static Catalog open(JsonNode args) {
        Options options = new Options(Rows.strings((JsonNode) args.get("catalog")));
        return CatalogFactory.createCatalog(CatalogContext.create(options));
    }

    /** A table db.NAME with the columns k, v and p, by which it is partitioned. */
    public void createTable(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        catalog.createDatabase("db", true);
        Schema.Builder schema = Schema.newBuilder();
        schema.column("k", DataTypes.BIGINT());
        schema.column("v", DataTypes.BIGINT());
        schema.column("p", DataTypes.STRING());
        schema.partitionKeys(Collections.singletonList("p"));
        schema.options(Rows.strings((JsonNode) args.get("options")));
        String name = ((JsonNode) args.get("name")).asText();
        catalog.createTable(Identifier.create("db", name), schema.build(), false);
        catalog.close();
    }

    /** Commits the rows (n, n, p) for n up to `files`, a file and a snapshot each. */
    public void write(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        Table table = catalog.getTable(Identifier.create("db", ((JsonNode) args.get("name")).asText()));
        BinaryString p = BinaryString.fromString(((JsonNode) args.get("p")).asText());
        for (long n = 0; n < ((JsonNode) args.get("files")).asLong(); n++) {
            BatchWriteBuilder builder = table.newBatchWriteBuilder();
            BatchTableWrite write = builder.newWrite();
            BatchTableCommit commit = builder.newCommit();
            GenericRow row = new GenericRow(3);
            row.setField(0, Long.valueOf(n));
            row.setField(1, Long.valueOf(n));
            row.setField(2, p);
            write.write(row);
            commit.commit(write.prepareCommit());
            write.close();
            commit.close();
        }
        catalog.close();
    }

    /** How many partitions the metastore has. */
    public int partitions(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        int found = catalog.listPartitions(Identifier.create("db", name)).size();
        catalog.close();
        return found;
    }

    public void drop(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        catalog.dropTable(Identifier.create("db", name), false);
        catalog.close();
    }
}
