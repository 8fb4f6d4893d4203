// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestBadEndpoints names devices that can be no endpoints.
func TestBadEndpoints(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.run(t, "-n PODB link add lone type veth peer name other\n-n PODB addr add 192.168.10.50/32 dev lone")
	n.run(t, "-n PODB link add br9 type bridge\n-n PODB addr add 192.168.10.51/32 dev br9")
	n.run(t, "-n PODA addr flush dev eth0 scope global")
	for _, c := range []struct {
		name, want string
		attach     Attach
		notExist   bool
	}{
		{"no such device", "eth7", Attach{Namespace: n.pods[0], IfName: "eth7", Host: n.host}, true},
		{"no namespace", "no network namespace", Attach{IfName: "eth0", Host: n.host}, false},
		{"no address", "no address", n.attachment(0), false},
		{"loopback", `"loopback"`, Attach{Namespace: n.pods[0], IfName: "lo", Host: n.host}, false},
		{"bridge", `"bridge"`, Attach{Namespace: n.pods[1], IfName: "br9", Host: n.host}, false},
		{"peer elsewhere", "peer is not in", Attach{Namespace: n.pods[1], IfName: "lone", Host: n.host}, false},
		{"in no host", "peer is not in", Attach{Namespace: n.pods[1], IfName: "eth0", Host: n.pods[0]}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := d.AddEndpoint(c.attach)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if errors.Is(err, os.ErrNotExist) != c.notExist {
				t.Errorf("error %v: os.ErrNotExist matches %v", err, !c.notExist)
			}
			wantEndpoints(t, d)
			wantLinks(t, d, 0)
		})
	}
}
