import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.api.Partition;
import org.apache.hadoop.hive.metastore.api.ThriftHiveMetastore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.DelegateCatalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.hive.HiveCatalog;
import org.apache.paimon.options.Options;
import org.apache.paimon.partition.actions.PartitionMarkDoneAction;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
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

    /** The entries of a table's partitions by value, without times and the metastore's counts. */
    public String entries(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        HiveCatalog hive = (HiveCatalog) DelegateCatalog.rootCatalog(catalog);
        List entries = hive.listPartitionsFromHms(Identifier.create("db", name));
        Map found = new TreeMap();
        for (int i = 0; i < entries.size(); i++) {
            Partition entry = (Partition) entries.get(i);
            Map parameters = new TreeMap(entry.getParameters());
            parameters.keySet()
                    .removeAll(
                            Arrays.asList("transient_lastDdlTime", "numFiles", "totalSize"));
            found.put(
                    entry.getValues().get(0),
                    Arrays.asList(parameters.toString(), entry.getSd().toString()));
        }
        catalog.close();
        return Rows.MAPPER.writeValueAsString(found);
    }

    /** The partitions that Java's catalog says are done. */
    public String done(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        List partitions = catalog.listPartitions(Identifier.create("db", name));
        List found = new ArrayList();
        for (int i = 0; i < partitions.size(); i++) {
            org.apache.paimon.partition.Partition each =
                    (org.apache.paimon.partition.Partition) partitions.get(i);
            if (each.done()) {
                found.add(each.spec().get("p"));
            }
        }
        catalog.close();
        return Rows.MAPPER.writeValueAsString(found);
    }

    /** Marks a partition done in the ways of the table's options. */
    public void markDone(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        FileStoreTable table = (FileStoreTable) catalog.getTable(Identifier.create("db", name));
        List actions =
                PartitionMarkDoneAction.createActions(
                        getClass().getClassLoader(), table, table.coreOptions());
        for (int i = 0; i < actions.size(); i++) {
            ((PartitionMarkDoneAction) actions.get(i))
                    .markDone(((JsonNode) args.get("partition")).asText());
        }
        catalog.close();
    }

    /** The partitions that expire now, as a job has them expire. */
    public String expire(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        FileStoreTable table = (FileStoreTable) catalog.getTable(Identifier.create("db", name));
        List found = table.store().newPartitionExpire("java", table).expire(7L);
        catalog.close();
        return Rows.MAPPER.writeValueAsString(found);
    }

    public void drop(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Catalog catalog = open(args);
        String name = ((JsonNode) args.get("name")).asText();
        catalog.dropTable(Identifier.create("db", name), false);
        catalog.close();
    }
}
