import org.apache.paimon.data.BlobData;
import org.apache.paimon.data.DataGetters;
import org.apache.paimon.data.variant.GenericVariant;
import org.apache.paimon.data.variant.Variant;

/** Values of types that the releases before 2.0 lack, see releases/NewerTypes.java. */
public class NewerTypes {

    public static Object variant(byte[] value, byte[] metadata) {
        return new GenericVariant(value, metadata);
    }

    public static byte[][] variant(DataGetters row, int pos) {
        Variant variant = row.getVariant(pos);
        return new byte[][] {variant.value(), variant.metadata()};
    }

    public static Object blob(byte[] data) {
        return new BlobData(data);
    }

    public static byte[] blob(DataGetters row, int pos) {
        return row.getBlob(pos).toData();
    }
}
