// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni/record"
	"mustang/internal/rtnl"
)

// TestDelOfOtherName forges a record outside of the plugin's directory, which names a device of the node, and calls each verb
// with a name that leads there and another that the protocol's library accepts.
func TestDelOfOtherName(t *testing.T) {
	f := newFixture(t)
	config := network("net", "veth", "")
	p := f.added("a", config)
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.host, Name: "node"}, rtnl.VethEnd{Namespace: f.outside, Name: "other"}, 1500))
	path := filepath.Join(f.plugin.RunDir, "..", "x", "attachments", "a@eth0.record")
	f.must(os.MkdirAll(filepath.Dir(path), 0o700))
	forged := []byte(`{"owner":{"container":"a","interface":"eth0"},"boot":"x","link":"veth","host_ifname":"node","linked":true,"done":true}` + "\n")
	f.must(os.WriteFile(path, forged, 0o600))
	p.request.Config = bytes.Replace(config, []byte(`"name":"net"`), []byte(`"name":"../x","Name":"net"`), 1)
	for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS", "ADD"} {
		a := f.runFor(p, verb)
		f.failed(a, types.ErrInvalidNetworkConfig, `name: invalid characters`, `../x`)
	}
	// The same record in the right place names no device of the attachment.
	f.must(os.WriteFile(f.plugin.records().Path("net", p.request.owner()), forged, 0o600))
	p.request.Config = config
	f.must(f.del(p))
	if _, err := rtnl.In(f.host).Device("node"); err != nil {
		t.Error(err)
	}
	if _, err := rtnl.In(f.host).Device(record.DeviceName("net", p.request.owner())); err == nil {
		t.Error("the device of the attachment is left")
	}
}

// TestDelOfHalfRecord cuts a record after each of its lines but the last: DEL and GC delete all that ADD has made.
func TestDelOfHalfRecord(t *testing.T) {
	t.Parallel()
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newCrashFixture(t, mode)
			before := f.left()
			for lines := 0; ; lines++ {
				p := f.added(fmt.Sprint("a", lines), everything(mode))
				path := f.plugin.records().Path("net", p.request.owner())
				data, err := os.ReadFile(path)
				f.must(err)
				all := strings.SplitAfter(strings.TrimSpace(string(data)), "\n\n")
				if lines == len(all) {
					f.must(f.del(p))
					return
				}
				// What is left of the last line is its first half.
				cut := strings.Join(all[:lines], "") + all[lines][:len(all[lines])/2]
				f.must(os.WriteFile(path, []byte(cut), 0o600))
				f.must(f.del(p))
				f.same(before, fmt.Sprintf("%d of %d lines of %s", lines, len(all), mode))
			}
		})
	}
}

// TestLongContainerID refuses a container whose record would have no file, and has nothing to delete for it.
func TestLongContainerID(t *testing.T) {
	f := newFixture(t)
	for _, n := range []int{249, 255, 4000} {
		p := f.pod("a", network("net", "veth", ""))
		p.request.ContainerID = strings.Repeat("a", n)
		before := f.left()
		f.oneLine(f.add(p), "name too long", "bytes")
		f.must(f.del(p))
		f.same(before, "DEL")
	}
}
