import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.UUID;

/**
 * An order service in Java with JDBC: an order and its message commit together.
 *
 * <p>docs/from-java.md explains it, and a test of outbox-relay runs its statements.
 *
 * <pre>java -cp postgresql.jar PlaceOrder.java 'jdbc:postgresql://host/shop?user=…'</pre>
 */
public class PlaceOrder {

    /** Call it between the other statements of the transaction, on the same connection. */
    static UUID enqueueJson(Connection connection, String topic, String key, String json) throws SQLException {
        // JDBC knows neither json nor jsonb: the casts say what the texts are.
        var sql = "SELECT outbox.enqueue_json(topic => ?, payload => ?::json, key => ?, headers => ?::jsonb)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, topic);
            statement.setString(2, json);
            statement.setString(3, key); // messages of one key arrive in order
            statement.setString(4, "{\"content-type\": \"application/json\"}");
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getObject(1, UUID.class); // the message id: it stays the same in every copy
            }
        }
    }

    static UUID enqueueBytes(Connection connection, String topic, String key, byte[] payload) throws SQLException {
        var sql = "SELECT outbox.enqueue(topic => ?, payload => ?, key => ?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, topic);
            statement.setBytes(2, payload);
            statement.setString(3, key);
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getObject(1, UUID.class);
            }
        }
    }

    /** @param json the order, as the JSON library of the service writes it */
    static UUID placeOrder(Connection connection, long id, String item, String json) throws SQLException {
        connection.setAutoCommit(false);
        try {
            try (PreparedStatement insert =
                    connection.prepareStatement("INSERT INTO orders (id, item) VALUES (?, ?)")) {
                insert.setLong(1, id);
                insert.setString(2, item);
                insert.executeUpdate();
            }
            UUID message = enqueueJson(connection, "orders.placed", "order-" + id, json);
            connection.commit();
            return message;
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            System.out.println(placeOrder(connection, 1, "tea", "{\"id\": 1, \"item\": \"tea\"}"));
            byte[] png = {(byte) 0x89, 'P', 'N', 'G', 0, (byte) 0xff};
            System.out.println(enqueueBytes(connection, "orders.labels", "order-1", png));
            connection.commit();
        }
    }
}
