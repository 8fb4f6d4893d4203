// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestSaveAppends reads the last complete line of a record.
func TestSaveAppends(t *testing.T) {
	s := Store{Root: t.TempDir()}
	o := Owner{ContainerID: "a", IfName: "eth0"}
	_, err := s.Open("pods", o, false)
	testkit.Require(t, errors.Is(err, fs.ErrNotExist), "open before it is created: %v", err)
	r := testkit.Must(s.Open("pods", o, true))(t)
	for _, boot := range []string{"first", "second"} {
		r.Boot = boot
		testkit.Succeed(t, r.Save())
	}
	r.Close()
	data := testkit.Must(os.ReadFile(s.Path("pods", o)))(t)
	second := bytes.LastIndex(data, []byte("{"))
	for size := len(data); size >= second; size-- {
		want := "second"
		if size < len(data)-1 { // without its last brace
			want = "first"
		}
		testkit.Succeed(t, os.WriteFile(s.Path("pods", o), data[:size], 0o600))
		all, err := s.List("a")
		if err != nil || len(all) != 1 || all[0].Boot != want || all[0].Network != "pods" || all[0].Owner != o {
			t.Fatalf("%d of %d bytes: %+v, %v", size, len(data), all, err)
		}
	}
}

// TestForgedRecord ignores lines of other attachments, and lines that name a device of the host.
func TestForgedRecord(t *testing.T) {
	s := Store{Root: t.TempDir()}
	o := Owner{ContainerID: "a", IfName: "eth0"}
	for _, line := range []string{
		`{"owner":{"container":"a","interface":"eth0"},"boot":"x","host_ifname":"eth1"}`,
		`{"owner":{"container":"b","interface":"eth0"},"boot":"x"}`, `{"boot":"x"}`,
	} {
		testkit.Succeed(t, os.MkdirAll(s.dir("pods"), 0o700))
		testkit.Succeed(t, os.WriteFile(s.Path("pods", o), []byte("\n"+line+"\n"), 0o600))
		r := testkit.Must(s.Open("pods", o, false))(t)
		r.Close()
		testkit.Check(t, r.Boot == "" && r.HostIfName == "", "%s: read as %+v", line, r)
		all, err := s.List("")
		testkit.Check(t, err == nil && len(all) == 0, "%s: listed as %+v, %v", line, all, err)
	}
}

// TestLongName refuses attachments whose record cannot be written, and takes the longest possible name.
func TestLongName(t *testing.T) {
	s := Store{Root: t.TempDir()}
	for n, want := range map[int]error{249: ErrTooLong, maxNames - len("podseth0") + 1: ErrTooLong,
		maxNames - len("podseth0"): nil} {
		r, err := s.Open("pods", Owner{ContainerID: strings.Repeat("a", n), IfName: "eth0"}, true)
		testkit.Check(t, errors.Is(err, want), "container ID of %d bytes: %v, want %v", n, err, want)
		if err == nil {
			err := r.Save()
			testkit.Check(t, err == nil, "container ID of %d bytes: %v", n, err)
			r.Close()
		}
	}
}

// FuzzParseRecord parses records. The last line that is accepted can be written and read again.
func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("\n{\"owner\":{\"container\":\"a\",\"interface\":\"eth0\"},\"boot\":\"x\"," +
		"\"addresses\":[\"10.0.0.2\"],\"done\":true}\n"))
	f.Add([]byte("{\"owner\":{\"container\":\"a\",\"interface\":\"eth0\"},\"boot\":\"x\"}\n{\"boot\":\"y\""))
	f.Add([]byte("null\n[]\n{}"))
	f.Add([]byte("{\"ports\":[{}],\"routes\":[{\"dst\":\"x\"}]}"))
	f.Add([]byte("{\"owner\":{\"container\":\"b\",\"interface\":\"eth0\"},\"host_ifname\":\"eth0\"}"))
	o := Owner{ContainerID: "a", IfName: "eth0"}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := parse(data, "pods", o)
		if !ok {
			return
		}
		testkit.Require(t, r.Owner == o && (r.HostIfName == "" || r.HostIfName == DeviceName("pods", o)),
			"%q: accepted %+v", data, r)
		line := testkit.Must(json.Marshal(r))(t)
		again, ok := parse(append([]byte("{\n"), line...), "pods", o)
		second, err := json.Marshal(again)
		testkit.Require(t, ok && err == nil && bytes.Equal(line, second), "%s\nwritten and read: %s, %v", line, second, err)
	})
}

// FuzzNetwork reads the record of a network.
func FuzzNetwork(f *testing.F) {
	f.Add([]byte(`{"boot":"x","digest":"y","link":"veth","mtu":1500,"gateways":["10.0.0.1/24"]}`))
	f.Add([]byte(`{"gateways":["x"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Store{Root: t.TempDir()}
		unlock := testkit.Must(s.Lock("pods"))(t)
		defer unlock()
		testkit.Succeed(t, os.WriteFile(s.Root+"/pods/"+networkFile, data, 0o600))
		n, ok := s.Network("pods")
		if !ok {
			return
		}
		testkit.Succeed(t, s.SaveNetwork("pods", n))
		_, ok = s.Network("pods")
		testkit.Require(t, ok, "%+v cannot be read again", n)
	})
}

// TestDeviceName checks the length and the uniqueness of device names.
func TestDeviceName(t *testing.T) {
	seen := map[string]bool{}
	for _, network := range []string{"pods", "other"} {
		for _, id := range []string{"a", "b"} {
			for _, ifname := range []string{"eth0", "eth1"} {
				name := DeviceName(network, Owner{ContainerID: id, IfName: ifname})
				testkit.Check(t, len(name) == 15 && !seen[name] && strings.HasPrefix(name, DevicePrefix(network)),
					"%s/%s/%s: %q", network, id, ifname, name)
				seen[name] = true
			}
		}
	}
}
