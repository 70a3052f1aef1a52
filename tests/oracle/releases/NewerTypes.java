import org.apache.paimon.data.DataGetters;

/** In place of ../NewerTypes.java where a release before 2.0 is driven. */
public class NewerTypes {

    public static Object variant(byte[] value, byte[] metadata) {
        throw absent("VARIANT");
    }

    public static byte[][] variant(DataGetters row, int pos) {
        throw absent("VARIANT");
    }

    public static Object blob(byte[] data) {
        throw absent("BLOB");
    }

    public static byte[] blob(DataGetters row, int pos) {
        throw absent("BLOB");
    }

    private static RuntimeException absent(String type) {
        return new UnsupportedOperationException("this release has no " + type);
    }
}
