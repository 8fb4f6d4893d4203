// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestOVSDBValues reads values in all their notations.
func TestOVSDBValues(t *testing.T) {
	for text, want := range map[string]ovsdbSet{
		`"a"`:                                 {"a"},
		`12`:                                  {"12"},
		`true`:                                {"true"},
		`["uuid","x"]`:                        {"x"},
		`["set",[]]`:                          {},
		`["set",["a","b"]]`:                   {"a", "b"},
		`["set",[["uuid","x"],["uuid","y"]]]`: {"x", "y"},
	} {
		var got ovsdbSet
		if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{`[]`, `["set",1,2]`, `["set",{}]`, `["map"]`, `["map",{}]`} {
		var set ovsdbSet
		var pairs ovsdbMap
		if json.Unmarshal([]byte(text), &set) == nil && json.Unmarshal([]byte(text), &pairs) == nil {
			t.Errorf("%s is %v and %v", text, set, pairs)
		}
	}
	data, err := json.Marshal(ovsdbMap{"a": "b"})
	if string(data) != `["map",[["a","b"]]]` {
		t.Errorf("a map is written as %s, %v", data, err)
	}
	var back ovsdbMap
	if err := json.Unmarshal(data, &back); err != nil || back["a"] != "b" || len(back) != 1 {
		t.Errorf("and read as %v, %v", back, err)
	}
}

// TestOVSDBErrors has a server refuse, ask back, answer nonsense and hang up.
func TestOVSDBErrors(t *testing.T) {
	for _, row := range []struct{ name, answers, says string }{
		{"operation fails", `{"id":1,"error":null,"result":[{"error":"timed out","details":"too late"},null]}`, "timed out: too late"},
		{"commit fails", `{"id":1,"error":null,"result":[{},{},{"error":"constraint violation","details":"twice"}]}`, "twice"},
		{"request fails", `{"id":1,"error":"unknown database","result":null}`, "unknown database"},
		{"too few results", `{"id":1,"error":null,"result":[{}]}`, "1 results for 2 operations"},
		{"nonsense", `{"id":1,"error":null,"result":{}}`, "read the answer"},
		{"no JSON", `hello`, "invalid character"},
		{"hangs up", ``, "EOF"},
		{"asks back and updates", `{"id":"echo","method":"echo","params":["x"]}{"id":null,"method":"update","params":[]}` +
			`{"id":0,"error":null,"result":[]}{"id":1,"error":null,"result":[{"count":1},{}]}`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			echoed := make(chan error, 1)
			go func() {
				defer theirs.Close()
				decode := json.NewDecoder(theirs)
				var request, echo ovsdbMessage
				err := decode.Decode(&request)
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					_, _ = theirs.Write([]byte(row.answers))
				}()
				if strings.Contains(row.answers, "echo") {
					err = errors.Join(err, decode.Decode(&echo))
					if echo.ID != "echo" || string(echo.Result) != `["x"]` {
						err = fmt.Errorf("the answer to an echo is %+v, %w", echo, err)
					}
				}
				<-answered
				echoed <- err
			}()
			db := &ovsdb{conn: ours, decode: json.NewDecoder(ours)}
			_, err := db.transact(ovsdbOp{"op": "comment"}, ovsdbOp{"op": "comment"})
			if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v", err)
			}
			if err := <-echoed; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOVSApply waits in vain for a daemon that does not answer, and reports a
// device that can't be used.
func TestOVSApply(t *testing.T) {
	testkit.RequireRoot(t)
	host := testkit.Namespace(t, "host")
	network := Network{Host: host, OVSDB: runOpenVSwitch(t, host, StartOpenVSwitch).Socket()}
	withSwitch(t, network, func(s ovsSwitch) error {
		if err := s.await(1000, 1); err == nil || !strings.Contains(err.Error(), "timed out") {
			t.Errorf("waiting for what does not come: %v", err)
		}
		datapath, err := s.bestDatapath(host)
		if err != nil {
			return err
		}
		if err := s.addBridge("mst0", datapath, "02:00:00:00:00:01", DefaultMTU); err != nil {
			return err
		}
		bridge, err := s.bridge("mst0")
		if err != nil {
			return err
		}
		err = s.addPort(bridge, ovsdbRow{"name": "absent"})
		if err == nil || !strings.Contains(err.Error(), `"absent"`) || !strings.Contains(err.Error(), "No such device") {
			t.Errorf("error is %v", err)
		}
		if again, err := s.bridge("mst0"); err != nil || !slices.Equal(again.Ports, bridge.Ports) {
			t.Errorf("the ports are %v, not %v; %v", again.Ports, bridge.Ports, err)
		}
		return nil
	})
}
