// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestInstances starts two on one machine, and stops one after the other.
func TestInstances(t *testing.T) {
	testkit.RequireRoot(t)
	var hosts []*netns.Namespace
	var switches []*Instance
	for _, name := range []string{"one", "two"} {
		host := testkit.Namespace(t, name)
		hosts, switches = append(hosts, host), append(switches, startInstance(t, host))
	}
	for i, s := range switches {
		got := namesIn(t, hosts[i])
		testkit.Check(t, slices.Equal(got, []string{"ovs-vswitchd", "ovsdb-server"}), "processes in the host: %v", got)
		if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory has mode %v, %v", info.Mode(), err)
		}
	}
	testkit.Succeed(t, switches[0].Stop())
	got := namesIn(t, hosts[0])
	testkit.Check(t, len(got) == 0, "still there: %v", got)
	_, err := os.Stat(switches[0].dir)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "the directory is still there: %v", err)
	err = switches[0].Stop()
	testkit.Check(t, err == nil, "stopped again: %v", err)
	db := testkit.Must(Open(switches[1].Socket()))(t)
	defer db.Close()
	testkit.Succeed(t, db.apply())
}

// namesIn returns the sorted names of the processes in a network namespace.
func namesIn(t *testing.T, ns *netns.Namespace) []string {
	t.Helper()
	inode := testkit.Must(ns.Inode())(t)
	entries := testkit.Must(os.ReadDir("/proc"))(t)
	var names []string
	for _, entry := range entries {
		var stat unix.Stat_t
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if unix.Stat(filepath.Join("/proc", entry.Name(), "ns/net"), &stat) != nil || stat.Ino != inode {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm"))
		if err == nil {
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	slices.Sort(names)
	return names
}

// TestStartFails expects an error that names the obstacle, and leaves nothing.
func TestStartFails(t *testing.T) {
	testkit.RequireRoot(t)
	host := testkit.Namespace(t, "host")
	there := filepath.Dir(newDir(t))
	for dir, row := range map[string]struct {
		says string
		is   error
	}{
		there:                       {"file exists", fs.ErrExist},
		"/nonexistent/dir":          {"/nonexistent/dir", fs.ErrNotExist},
		there + "/" + longName(100): {"more than 107 bytes", nil},
		there + "/a,x:b":            {"has a comma", nil},
	} {
		_, err := Start(host, dir, "")
		testkit.Fails(t, err, row.says)
		testkit.Check(t, row.is == nil || errors.Is(err, row.is), "error %v, want one that is %v", err, row.is)
	}
	entries, err := os.ReadDir(there)
	testkit.Check(t, err == nil && len(entries) == 0, "left behind: %v, %v", entries, err)
	got := namesIn(t, host)
	testkit.Check(t, len(got) == 0, "left behind: %v", got)
}

func longName(length int) string { return strings.Repeat("x", length) }

// TestDaemon has programs in the place of Open vSwitch's end early, ignore SIGTERM, or be missing.
func TestDaemon(t *testing.T) {
	testkit.RequireRoot(t)
	host := testkit.Namespace(t, "host")
	never := func() error { return errors.New("never ready") }
	start := func(script string) *daemon {
		dir := t.TempDir()
		program := filepath.Join(dir, "ovs-fake")
		testkit.Succeed(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		return testkit.Must(startDaemon(host, dir, program))(t)
	}
	dies := start("echo first; echo last words >&2; exit 3")
	testkit.Fails(t, dies.await(never), "ovs-fake ended (exit status 3): last words")
	testkit.Succeed(t, dies.stop())
	stays := start("trap 'echo stopping; exit' TERM; echo ready; while :; do sleep 0.01; done")
	testkit.Eventually(t, 5*time.Second, func() error {
		if stays.lastLog() != "ready" {
			return errors.New("it has not set its trap")
		}
		return nil
	})
	if err := stays.stop(); err != nil || stays.lastLog() != "stopping" {
		t.Errorf("stopped: %v, last words: %s", err, stays.lastLog())
	}
	_, err := startDaemon(host, t.TempDir(), "/nonexistent/ovs-fake")
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "error is %v", err)
}

func startInstance(t *testing.T, host *netns.Namespace) *Instance {
	t.Helper()
	i := testkit.Must(Start(host, newDir(t), ""))(t)
	t.Cleanup(func() {
		err := i.Stop()
		testkit.Check(t, err == nil, "%v", err)
	})
	return i
}

// newDir returns a directory that does not exist. It is outside the test's own, whose path is too long for a socket.
func newDir(t *testing.T) string {
	t.Helper()
	if err := FindPrograms(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir := testkit.Must(os.MkdirTemp("", "mst-ovs-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}

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
		err := json.Unmarshal([]byte(text), &got)
		testkit.Check(t, err == nil && slices.Equal(got, want), "%s is %v, %v", text, got, err)
	}
	for _, text := range []string{`[]`, `["set",1,2]`, `["set",{}]`, `["map"]`, `["map",{}]`} {
		var values set
		var pairs stringMap
		testkit.Check(t, json.Unmarshal([]byte(text), &values) != nil || json.Unmarshal([]byte(text), &pairs) != nil,
			"%s is %v and %v", text, values, pairs)
	}
	data, err := json.Marshal(stringMap{"a": "b"})
	testkit.Check(t, string(data) == `["map",[["a","b"]]]`, "a map is written as %s, %v", data, err)
	var back stringMap
	err = json.Unmarshal(data, &back)
	testkit.Check(t, err == nil && back["a"] == "b" && len(back) == 1, "and read as %v, %v", back, err)
}

// TestDatabaseErrors tests a server that refuses, sends a request, answers nonsense, and hangs up.
func TestDatabaseErrors(t *testing.T) {
	for _, row := range []struct{ name, answers, says string }{
		{"operation fails", `{"id":1,"error":null,"result":[{"error":"timed out","details":"too late"},null]}`,
			"timed out: too late"},
		{"commit fails", `{"id":1,"error":null,"result":[{},{},{"error":"constraint violation","details":"twice"}]}`,
			"twice"},
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
			testkit.Check(t, (err == nil) == (row.says == "") && (err == nil || strings.Contains(err.Error(), row.says)),
				"error is %v", err)
			testkit.Succeed(t, <-echoed)
		})
	}
}

// TestHungServer has a server that accepts connections and never answers: the first call fails in 15 s at most, and
// later calls at once.
func TestHungServer(t *testing.T) {
	t.Parallel()
	testkit.Check(t, applyTimeout+answerMargin <= 15*time.Second,
		"an answer is waited for for %v", applyTimeout+answerMargin)
	listener := testkit.Must(net.Listen("unix", filepath.Join(t.TempDir(), "db.sock")))(t)
	defer listener.Close()
	s := testkit.Must(Open(listener.Addr().String()))(t)
	defer s.Close()
	_, err := s.Bridge("mst0")
	testkit.Check(t, errors.Is(err, os.ErrDeadlineExceeded), "the first call: %v", err)
	_, err = s.DeletePort("msta")
	testkit.Check(t, errors.Is(err, net.ErrClosed), "the second call: %v", err)
}

// TestSwitchErrors waits in vain for a daemon that does not answer, and adds a port without a device.
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

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
