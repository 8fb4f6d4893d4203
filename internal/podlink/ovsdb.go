// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

const (
	// ovsdbTimeout is how long Open vSwitch may take to apply a change: milliseconds,
	// but seconds on a busy emulated processor.
	ovsdbTimeout = 30 * time.Second
	// ovsdbMargin is how much longer the database may take to answer.
	ovsdbMargin = 5 * time.Second
	// ovsdbName is the database of Open vSwitch among those that a server may have.
	ovsdbName = "Open_vSwitch"
)

// ovsdb is a connection to a database server that speaks RFC 7047. It is for one
// goroutine.
type ovsdb struct {
	conn   net.Conn
	decode *json.Decoder
	id     int
}

// dialOVSDB connects to the server's unix socket.
func dialOVSDB(socket string) (*ovsdb, error) {
	conn, err := net.DialTimeout("unix", socket, ovsdbTimeout)
	if err != nil {
		return nil, fmt.Errorf("connect to the database of Open vSwitch: %w", err)
	}
	return &ovsdb{conn: conn, decode: json.NewDecoder(conn)}, nil
}

func (d *ovsdb) close() { _ = d.conn.Close() }

// ovsdbOp is one operation of a transaction (RFC 7047, section 5.2).
type ovsdbOp map[string]any

// ovsdbResult is what an operation gave.
type ovsdbResult struct {
	Rows    json.RawMessage
	Count   int
	Error   string
	Details string
}

// ovsdbMessage is a request or a response of JSON-RPC.
type ovsdbMessage struct {
	ID     any             `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error"`
}

// transact runs the operations, all of them or none, and returns a result for
// each.
func (d *ovsdb) transact(ops ...ovsdbOp) ([]ovsdbResult, error) {
	params := []any{ovsdbName}
	for _, op := range ops {
		params = append(params, op)
	}
	answer, err := d.call("transact", params)
	if err != nil {
		return nil, fmt.Errorf("ask the database of Open vSwitch: %w", err)
	}
	var results []ovsdbResult
	if err := json.Unmarshal(answer, &results); err != nil {
		return nil, fmt.Errorf("read the answer of the database of Open vSwitch: %w", err)
	}
	// What follows the operation that failed is null; a failure to commit comes last.
	for _, result := range results {
		if result.Error != "" {
			return nil, fmt.Errorf("the database of Open vSwitch: %s: %s", result.Error, result.Details)
		}
	}
	if len(results) != len(ops) {
		return nil, fmt.Errorf("the database of Open vSwitch gave %d results for %d operations", len(results), len(ops))
	}
	return results, nil
}

// call sends a request and returns the result. Meanwhile the server may ask
// whether we are alive, which is answered.
func (d *ovsdb) call(method string, params any) (json.RawMessage, error) {
	if err := d.conn.SetDeadline(time.Now().Add(ovsdbTimeout + ovsdbMargin)); err != nil {
		return nil, err
	}
	d.id++
	encode := json.NewEncoder(d.conn)
	if err := encode.Encode(map[string]any{"method": method, "params": params, "id": d.id}); err != nil {
		return nil, err
	}
	for {
		var message ovsdbMessage
		if err := d.decode.Decode(&message); err != nil {
			return nil, err
		}
		if message.Method == "echo" {
			if err := encode.Encode(ovsdbMessage{ID: message.ID, Result: message.Params}); err != nil {
				return nil, err
			}
		}
		if id, ok := message.ID.(float64); message.Method != "" || !ok || id != float64(d.id) {
			continue
		}
		if len(message.Error) > 0 && string(message.Error) != "null" {
			return nil, fmt.Errorf("%s", message.Error)
		}
		return message.Result, nil
	}
}

// find selects the rows of a table that meet the conditions into rows, a pointer
// to a slice of structs whose fields are the columns.
func (d *ovsdb) find(table string, rows any, conditions ...any) error {
	results, err := d.transact(ovsdbOp{"op": "select", "table": table, "where": where(conditions...)})
	if err != nil {
		return err
	}
	return results[0].read(rows)
}

// read decodes the rows that an operation selected.
func (r ovsdbResult) read(rows any) error {
	if err := json.Unmarshal(r.Rows, rows); err != nil {
		return fmt.Errorf("read rows of the database of Open vSwitch: %w", err)
	}
	return nil
}
