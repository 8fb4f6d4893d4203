// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"
)

const (
	// ovs-vswitchd applies a change in milliseconds, but in seconds on a busy emulated processor.
	applyTimeout = 11 * time.Second
	dialTimeout  = 5 * time.Second
	answerMargin = 4 * time.Second // for the database's answer: it writes to disk
	databaseName = "Open_vSwitch"
)

// database is a connection to a database server (RFC 7047). It is for one goroutine.
type database struct {
	conn   net.Conn
	decode *json.Decoder
	id     int
}

func dial(socket string) (*database, error) {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return nil, fmt.Errorf("connect to the Open vSwitch database: %w", err)
	}
	return &database{conn: conn, decode: json.NewDecoder(conn)}, nil
}

func (d *database) close() { _ = d.conn.Close() }

type operation map[string]any

type result struct {
	Rows    json.RawMessage
	Count   int
	Error   string
	Details string
}

type message struct {
	ID     any             `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error"`
}

// transact runs all operations or none, and returns a result for each.
func (d *database) transact(operations ...operation) (results []result, err error) {
	params := []any{databaseName}
	for _, op := range operations {
		params = append(params, op)
	}
	if err := d.call("transact", params, &results); err != nil {
		d.close() // later calls do not wait for the same server again
		return nil, fmt.Errorf("query the Open vSwitch database: %w", err)
	}
	// Results after a failed operation are null. A failed commit comes last.
	for _, r := range results {
		if r.Error != "" {
			return nil, fmt.Errorf("ovsdb: %s: %s", r.Error, r.Details)
		}
	}
	if len(results) != len(operations) {
		return nil, fmt.Errorf("ovsdb: %d results for %d operations", len(results), len(operations))
	}
	return results, nil
}

// call sends a request and decodes the result. It answers echo requests of the server meanwhile.
func (d *database) call(method string, params, result any) error {
	if err := d.conn.SetDeadline(time.Now().Add(applyTimeout + answerMargin)); err != nil {
		return err
	}
	d.id++
	encode := json.NewEncoder(d.conn)
	if err := encode.Encode(map[string]any{"method": method, "params": params, "id": d.id}); err != nil {
		return err
	}
	for {
		var m message
		if err := d.decode.Decode(&m); err != nil {
			return err
		}
		switch id, _ := m.ID.(float64); {
		case m.Method == "echo":
			if err := encode.Encode(message{ID: m.ID, Result: m.Params}); err != nil {
				return err
			}
		case m.Method != "" || id != float64(d.id):
		case len(m.Error) > 0 && string(m.Error) != "null":
			return fmt.Errorf("%s", m.Error)
		default:
			if err := json.Unmarshal(m.Result, result); err != nil {
				return fmt.Errorf("parse the answer: %w", err)
			}
			return nil
		}
	}
}

// find selects the rows that meet the conditions into a pointer to a slice of structs with columns as fields.
func (d *database) find(table string, rows any, conditions ...any) error {
	results, err := d.transact(operation{"op": "select", "table": table, "where": where(conditions...)})
	if err != nil {
		return err
	}
	return results[0].read(rows)
}

func (r result) read(rows any) error {
	if err := json.Unmarshal(r.Rows, rows); err != nil {
		return fmt.Errorf("parse rows of the Open vSwitch database: %w", err)
	}
	return nil
}

type row map[string]any

func where(conditions ...any) []any        { return append([]any{}, conditions...) }
func equal(column string, value any) []any { return []any{column, "==", value} }
func uuid(id string) []string              { return []string{"uuid", id} }
func named(name string) []string           { return []string{"named-uuid", name} }

// set is a column with any number of values, which are strings, numbers, booleans or UUIDs (RFC 7047, section 5.1).
// The server may send a set of one as the value alone.
type set []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *set) UnmarshalJSON(data []byte) error {
	var tagged []json.RawMessage
	if json.Unmarshal(data, &tagged) != nil {
		*s = set{atom(data)}
		return nil
	}
	if len(tagged) != 2 {
		return fmt.Errorf("invalid database value %s", data)
	}
	if atom(tagged[0]) != "set" { // a UUID
		*s = set{atom(tagged[1])}
		return nil
	}
	var members []set
	if err := json.Unmarshal(tagged[1], &members); err != nil {
		return err
	}
	*s = set{}
	for _, member := range members {
		*s = append(*s, member...)
	}
	return nil
}

func (s set) first() string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

type stringMap map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *stringMap) UnmarshalJSON(data []byte) error {
	var tag string
	var pairs [][2]string
	if err := json.Unmarshal(data, &[]any{&tag, &pairs}); err != nil {
		return err
	}
	*m = stringMap{}
	for _, pair := range pairs {
		(*m)[pair[0]] = pair[1]
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (m stringMap) MarshalJSON() ([]byte, error) {
	pairs := [][2]string{}
	for key, value := range m {
		pairs = append(pairs, [2]string{key, value})
	}
	return json.Marshal([]any{"map", pairs})
}

// atom returns a string without quotes, and a number or boolean as written.
func atom(data []byte) (text string) {
	if json.Unmarshal(data, &text) == nil {
		return text
	}
	return strings.TrimSpace(string(data))
}
