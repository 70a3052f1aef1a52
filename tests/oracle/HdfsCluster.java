import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;

/** An HDFS with one data node, in this JVM. */
public class HdfsCluster {

    private final String scratch;
    private MiniDFSCluster cluster;

    public HdfsCluster(String scratch) {
        this.scratch = scratch;
    }

    /** Starts it with so many name nodes, of which the first is active; their ports, as JSON. */
    public String start(String nameNodes) throws Exception {
        HdfsConfiguration conf = new HdfsConfiguration();
        conf.set("hdfs.minidfs.basedir", scratch);
        // Files of more than one block need not be large.
        conf.set("dfs.namenode.fs-limits.min-block-size", "1024");
        conf.set("dfs.blocksize", "8388608");
        conf.set("dfs.replication", "1");
        // So many files are a page of a listing.
        conf.set("dfs.ls.limit", "100");
        int count = Integer.parseInt(nameNodes);
        MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf).numDataNodes(1);
        if (count > 1) {
            builder.nnTopology(MiniDFSNNTopology.simpleHATopology(count));
        }
        cluster = builder.build();
        cluster.waitActive();
        StringBuilder ports = new StringBuilder("[");
        for (int i = 0; i < count; i++) {
            ports.append(i == 0 ? "" : ", ").append(cluster.getNameNodePort(i));
        }
        if (count > 1) {
            cluster.transitionToActive(0);
        }
        return ports.append("]").toString();
    }

    /** The second name node takes over. */
    public void failOver(String json) throws Exception {
        cluster.transitionToStandby(0);
        cluster.transitionToActive(1);
    }
}
