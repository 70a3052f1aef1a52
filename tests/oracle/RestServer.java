import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.rest.RESTCatalogServer;
import org.apache.paimon.rest.RESTToken;
import org.apache.paimon.rest.auth.AuthProvider;
import org.apache.paimon.rest.auth.BearTokenAuthProvider;
import org.apache.paimon.rest.responses.ConfigResponse;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** Paimon's own REST server for tests, one at a time. */
public class RestServer {

    private RESTCatalogServer server;

    public RestServer(String scratch) {}

    /** Serves the warehouse below `path`; the answer is the server's address. */
    public String start(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        Map defaults = Rows.strings((JsonNode) args.get("defaults"));
        Map overrides = Rows.strings((JsonNode) args.get("overrides"));
        AuthProvider auth = new BearTokenAuthProvider(((JsonNode) args.get("token")).asText());
        ConfigResponse config = new ConfigResponse(defaults, overrides);
        server =
                new RESTCatalogServer(
                        ((JsonNode) args.get("path")).asText(),
                        auth,
                        config,
                        ((JsonNode) args.get("warehouse")).asText());
        server.start();
        return server.getUrl();
    }

    public String stop(String json) throws Exception {
        server.shutdown();
        return null;
    }

    /** The next commit takes effect and is answered with 500. */
    public String failAfterCommit(String json) throws Exception {
        RESTCatalogServer.commitSuccessThrowException = true;
        return null;
    }

    public String forbid(String json) throws Exception {
        JsonNode args = Rows.MAPPER.readTree(json);
        server.addNoPermissionTable(Identifier.fromString(((JsonNode) args.get("table")).asText()));
        return null;
    }
}
