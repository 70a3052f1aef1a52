import java.lang.reflect.Method;
import java.util.Properties;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** A Hive metastore over a database in memory, in a thread of this JVM. */
public class Metastore {

    public Metastore(String scratch) {}

    /** Starts one at a port; the properties are those of hive-site.xml. */
    public void start(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Properties properties = System.getProperties();
        java.util.Map given = Rows.strings((JsonNode) args.get("properties"));
        // HiveConf takes those of its own keys from the system's properties.
        properties.putAll(given);
        int port = ((JsonNode) args.get("port")).asInt();
        Class conf = Class.forName("org.apache.hadoop.hive.conf.HiveConf");
        Class.forName("org.apache.hadoop.hive.metastore.txn.TxnDbUtil")
                .getMethod("prepDb", new Class[] {conf})
                .invoke(null, new Object[] {conf.getConstructor(new Class[0]).newInstance(new Object[0])});
        final String[] arguments = new String[] {"-p", String.valueOf(port)};
        final Method main =
                Class.forName("org.apache.hadoop.hive.metastore.HiveMetaStore")
                        .getMethod("main", new Class[] {String[].class});
        Thread thread =
                new Thread(
                        new Runnable() {
                            public void run() {
                                try {
                                    main.invoke(null, new Object[] {arguments});
                                } catch (Exception error) {
                                    error.printStackTrace();
                                }
                            }
                        });
        thread.setDaemon(true);
        thread.start();
    }
}
