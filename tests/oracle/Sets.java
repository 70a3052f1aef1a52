import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;

import org.apache.paimon.shade.org.apache.datasketches.common.Family;
import org.apache.paimon.shade.org.apache.datasketches.hll.HllSketch;
import org.apache.paimon.shade.org.apache.datasketches.hll.TgtHllType;
import org.apache.paimon.shade.org.apache.datasketches.theta.UpdateSketch;
import org.apache.paimon.shade.org.apache.datasketches.theta.UpdateSketchBuilder;
import org.apache.paimon.shade.org.roaringbitmap.longlong.Roaring64Bitmap;
import org.apache.paimon.utils.HllSketchUtil;
import org.apache.paimon.utils.RoaringBitmap64;
import org.apache.paimon.utils.ThetaSketch;

/** Serialised sets, which are the values of some aggregators; bytes are in hexadecimal digits. */
public class Sets {

    public Sets(String scratch) {}

    /** What the aggregator makes of two values. */
    public String union(String name, String left, String right) throws IOException {
        byte[] one = bytes(left);
        byte[] other = bytes(right);
        if (name.contains("hll_sketch")) {
            return hex(HllSketchUtil.union(one, other));
        }
        if (name.contains("theta_sketch")) {
            return hex(ThetaSketch.union(one, other));
        }
        RoaringBitmap64 found = new RoaringBitmap64();
        found.deserialize(one);
        RoaringBitmap64 more = new RoaringBitmap64();
        more.deserialize(other);
        found.or(more);
        return hex(found.serialize());
    }

    /** The numbers, or ranges as "from:count", that are added, without those that are removed. */
    public String bitmap64(String optimised, String added, String removed) throws IOException {
        Roaring64Bitmap found = new Roaring64Bitmap();
        String[] ranges = added.isEmpty() ? new String[0] : added.split(",");
        for (int i = 0; i < ranges.length; i++) {
            String[] range = ranges[i].split(":");
            long first = Long.parseLong(range[0]);
            if (range.length == 1) {
                found.addLong(first);
            } else {
                found.addRange(first, first + Long.parseLong(range[1]));
            }
        }
        String[] numbers = removed.isEmpty() ? new String[0] : removed.split(",");
        for (int i = 0; i < numbers.length; i++) {
            found.removeLong(Long.parseLong(numbers[i]));
        }
        if (optimised.contains("true")) {
            found.runOptimize();
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        found.serialize(new DataOutputStream(bytes));
        return hex(bytes.toByteArray());
    }

    /** A sketch of the type HLL_4, HLL_6 or HLL_8; "compact" or "updatable". */
    public String hll(String form, String type, String lgK, String first, String count) {
        HllSketch sketch = new HllSketch(Integer.parseInt(lgK), TgtHllType.valueOf(type));
        for (long i = 0; i < Long.parseLong(count); i++) {
            sketch.update(Long.parseLong(first) + i);
        }
        return hex(
                form.contains("compact")
                        ? sketch.toCompactByteArray()
                        : sketch.toUpdatableByteArray());
    }

    /** A sketch of the family QUICKSELECT or ALPHA; "ordered", "unordered" or "updatable". */
    public String theta(
            String form, String family, String p, String lgK, String first, String count) {
        UpdateSketchBuilder builder = UpdateSketch.builder();
        builder.setFamily(Family.valueOf(family));
        builder.setP(Float.parseFloat(p));
        builder.setNominalEntries(1 << Integer.parseInt(lgK));
        UpdateSketch sketch = builder.build();
        for (long i = 0; i < Long.parseLong(count); i++) {
            sketch.update(Long.parseLong(first) + i);
        }
        if (form.contains("updatable")) {
            return hex(sketch.toByteArray());
        }
        return hex(sketch.compact(!form.contains("unordered"), null).toByteArray());
    }

    private static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }

    private static String hex(byte[] bytes) {
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < bytes.length; i++) {
            found.append(Character.forDigit((bytes[i] >> 4) & 15, 16));
            found.append(Character.forDigit(bytes[i] & 15, 16));
        }
        return found.toString();
    }
}
