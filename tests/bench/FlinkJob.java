import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;

import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.LocalStreamEnvironment;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

import org.apache.paimon.flink.action.CompactAction;

/** The dedicated compaction job of Java Paimon on a running cluster. Compiled by Janino. */
public class FlinkJob {

    private final MiniCluster cluster;
    private final int parallelism;

    public FlinkJob(Integer parallelism) throws Exception {
        this.parallelism = parallelism.intValue();
        Configuration configuration = new Configuration();
        configuration.set(RestOptions.PORT, Integer.valueOf(0));
        cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(configuration)
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(this.parallelism)
                                .build());
        cluster.start();
    }

    /** [wall, CPU] nanoseconds of one job, from building it to its end. */
    public String compact(String warehouse, String database, String table) throws Exception {
        System.gc();
        long cpu = cpuNanos();
        long start = System.nanoTime();
        Configuration configuration = new Configuration();
        configuration.set(ExecutionOptions.RUNTIME_MODE, RuntimeExecutionMode.BATCH);
        LocalStreamEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        Map catalog = new HashMap();
        catalog.put("warehouse", warehouse);
        Map options = new HashMap();
        options.put("sink.parallelism", String.valueOf(parallelism));
        CompactAction action = new CompactAction(database, table, catalog, options);
        action.withStreamExecutionEnvironment(env);
        action.build();
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
        return "[" + (System.nanoTime() - start) + "," + (cpuNanos() - cpu) + "]";
    }

    public void close() throws Exception {
        cluster.close();
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                        ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }
}
