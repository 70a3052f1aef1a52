import java.io.IOException;

import org.apache.paimon.fs.ByteArraySeekableStream;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.SeekableInputStream;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.utils.IOUtils;

/**
 * Local files; those of metadata are read in one go.
 *
 * <p>Avro's reader looks for the first block byte by byte, and on a local file each byte is a call
 * of the system: half of the time that tests spend in Java.
 */
public class WholeManifests extends LocalFileIO {

    @Override
    public SeekableInputStream newInputStream(Path path) throws IOException {
        SeekableInputStream file = super.newInputStream(path);
        if (!path.getParent().getName().equals("manifest")) {
            return file;
        }
        return new ByteArraySeekableStream(IOUtils.readFully(file, true));
    }
}
