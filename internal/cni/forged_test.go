// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
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
	_, err := rtnl.In(f.host).Device("node")
	f.must(err)
	if _, err := rtnl.In(f.host).Device(record.DeviceName("net", p.request.owner())); err == nil {
		t.Error("the device of the attachment is left")
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
