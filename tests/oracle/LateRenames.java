import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

import org.apache.paimon.fs.Path;

/**
 * Local files whose snapshots may be renamed late: between the look and the move, where a process
 * may be stopped at any time.
 *
 * <p>While the table has a file "late", a rename to a snapshot makes "late.reached" and waits.
 */
public class LateRenames extends WholeManifests {

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        File target = new File(to.toUri().getPath());
        File table = target.getParentFile().getParentFile();
        File late = new File(table, "late");
        if (!to.getName().startsWith("snapshot-") || !late.exists()) {
            return super.rename(from, to);
        }
        // As LocalFileIO does, but for the wait.
        if (target.exists()) {
            return false;
        }
        new File(table, "late.reached").createNewFile();
        while (late.exists()) {
            try {
                Thread.sleep(10);
            } catch (InterruptedException e) {
                throw new IOException(e);
            }
        }
        Files.move(
                new File(from.toUri().getPath()).toPath(),
                target.toPath(),
                StandardCopyOption.ATOMIC_MOVE);
        return true;
    }
}
