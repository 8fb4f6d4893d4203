// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestColumnValues reads values in all their notations.
func TestColumnValues(t *testing.T) {
	for text, want := range map[string]set{
		`"a"`:                                 {"a"},
		`12`:                                  {"12"},
		`true`:                                {"true"},
		`["uuid","x"]`:                        {"x"},
		`["set",[]]`:                          {},
		`["set",["a","b"]]`:                   {"a", "b"},
		`["set",[["uuid","x"],["uuid","y"]]]`: {"x", "y"},
	} {
		var got set
		if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{`[]`, `["set",1,2]`, `["set",{}]`, `["map"]`, `["map",{}]`} {
		var values set
		var pairs stringMap
		if json.Unmarshal([]byte(text), &values) == nil && json.Unmarshal([]byte(text), &pairs) == nil {
			t.Errorf("%s is %v and %v", text, values, pairs)
		}
	}
	data, err := json.Marshal(stringMap{"a": "b"})
	if string(data) != `["map",[["a","b"]]]` {
		t.Errorf("a map is written as %s, %v", data, err)
	}
	var back stringMap
	if err := json.Unmarshal(data, &back); err != nil || back["a"] != "b" || len(back) != 1 {
		t.Errorf("and read as %v, %v", back, err)
	}
}

// TestDatabaseErrors has a server refuse, ask back, answer nonsense and hang up.
func TestDatabaseErrors(t *testing.T) {
	for _, row := range []struct{ name, answers, says string }{
		{"operation fails", `{"id":1,"error":null,"result":[{"error":"timed out","details":"too late"},null]}`, "timed out: too late"},
		{"commit fails", `{"id":1,"error":null,"result":[{},{},{"error":"constraint violation","details":"twice"}]}`, "twice"},
		{"request fails", `{"id":1,"error":"unknown database","result":null}`, "unknown database"},
		{"too few results", `{"id":1,"error":null,"result":[{}]}`, "1 results for 2 operations"},
		{"nonsense", `{"id":1,"error":null,"result":{}}`, "parse the answer"},
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
				var request, echo message
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
			db := &database{conn: ours, decode: json.NewDecoder(ours)}
			_, err := db.transact(operation{"op": "comment"}, operation{"op": "comment"})
			if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v", err)
			}
			testkit.Succeed(t, <-echoed)
		})
	}
}

// TestHungServer has a server that takes connections and never answers: the first call fails in 15 s at most, and those after it at once.
func TestHungServer(t *testing.T) {
	t.Parallel()
	if applyTimeout+answerMargin > 15*time.Second {
		t.Errorf("an answer is waited for for %v", applyTimeout+answerMargin)
	}
	listener := testkit.Must(net.Listen("unix", filepath.Join(t.TempDir(), "db.sock")))(t)
	defer listener.Close()
	s := testkit.Must(Open(listener.Addr().String()))(t)
	defer s.Close()
	if _, err := s.Bridge("mst0"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first call: %v", err)
	}
	if _, err := s.DeletePort("msta"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second call: %v", err)
	}
}

// TestSwitchErrors waits in vain for a daemon that does not answer, and adds a port
// without a device.
func TestSwitchErrors(t *testing.T) {
	testkit.RequireRoot(t)
	host := testkit.Namespace(t, "host")
	s := testkit.Must(Open(startInstance(t, host).Socket()))(t)
	defer s.Close()
	testkit.Fails(t, s.await(1000, 1), "timed out")
	datapath := testkit.Must(s.BestDatapath(host))(t)
	testkit.Succeed(t, s.AddBridge(BridgeSpec{Name: "mst0", Datapath: datapath, MAC: "02:00:00:00:00:01", MTU: 1500}))
	bridge := testkit.Must(s.Bridge("mst0"))(t)
	err := s.AddPort(bridge, Port{Name: "absent"})
	testkit.Fails(t, err, `"absent"`, "No such device")
	if again, err := s.Bridge("mst0"); err != nil || !slices.Equal(again.ports, bridge.ports) {
		t.Errorf("the ports are %v, not %v; %v", again.ports, bridge.ports, err)
	}
}
