// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUpgradeAdopts upgrades a datapath of layout 7, after attempts that were killed: it has the maps of this build but for
// those of policies, and services without addresses of backends. Connections go on, and policies hold.
func TestUpgradeAdopts(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	backend := testkit.Echo(t, n.pods[0], "tcp", podA4+":8080")
	want := service.Service{Frontend: netip.MustParseAddrPort(service4 + ":80"), Protocol: service.TCP, Backends: service.Backends(backend)}
	if _, _, err := d.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	conn, err := testkit.Dial(n.pods[1], "tcp", service4+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange(t, conn)
	root := d.objects.Root()
	if err := os.Rename(pins(d), filepath.Join(root, "v7")); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"policy_*", "identities", "verdicts", "senders"} {
		found, err := filepath.Glob(filepath.Join(root, "v7", "maps", pattern))
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		for _, pin := range found {
			if err := os.Remove(pin); err != nil {
				t.Fatal(err)
			}
		}
	}
	servicesOf7(t, filepath.Join(root, "v7", "maps", "services"))
	if _, err := OpenExisting(Options{Root: root}); err == nil || !strings.Contains(err.Error(), "mustang datapath upgrade") {
		t.Fatalf("open before: %v", err)
	}
	for _, ms := range []int{15, 30, 50, 80, 120} {
		killUpgrade(t, root, time.Duration(ms)*time.Millisecond)
		exchange(t, conn)
	}
	if _, err := Upgrade(t.Context(), Options{Root: root}); err != nil {
		t.Fatal(err)
	}
	exchange(t, conn)
	up := openSized(t, Options{Root: root})
	if got, _, err := d.objects.Services.Get(rows.ServiceKey(want.Frontend, want.Protocol)); err != nil {
		t.Fatal(err)
	} else if upgraded, _, err := up.objects.Services.Get(rows.ServiceKey(want.Frontend, want.Protocol)); err != nil || upgraded != got {
		t.Errorf("the service is %+v, was %+v: %v", upgraded, got, err)
	}
	if links, err := up.objects.Links(); err != nil || len(links) != 2*len(objects.AttachHost.Hooks()) {
		t.Errorf("links %v, %v", links, err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
		t.Errorf("%q holds %v, %v", root, entries, err)
	}
	n.labelled(t, up)
	applyPolicies(t, up, denyIngressA)
	caller{up, n.pods[1], "tcp"}.refused(t, backend, "drop_policy_ingress")
}

// servicesOf7 replaces a pinned map of services by one of layout 7, whose rows have no addresses of backends.
func servicesOf7(t *testing.T, pin string) {
	t.Helper()
	now, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	then, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Hash, KeySize: now.KeySize(), ValueSize: 52, MaxEntries: now.MaxEntries(), Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer then.Close()
	var (
		key objects.ServiceKey
		row objects.Service
	)
	for all := now.Iterate(); all.Next(&key, &row); {
		old := binary.LittleEndian.AppendUint32(nil, row.Id)
		for _, field := range []uint32{
			row.Revision, uint32(row.Count), row.Flags, uint32(row.Total), uint32(row.Local), row.AffinityTimeout, row.Table, uint32(row.LocalFirst), row.LocalTable,
		} {
			old = binary.LittleEndian.AppendUint32(old, field)
		}
		old = append(old, row.Owner, row.Choice, row.OnRemove, 0)
		old = binary.LittleEndian.AppendUint16(old, row.HealthCheckPort)
		old = binary.LittleEndian.AppendUint16(old, row.Ranges)
		if err := then.Put(key, binary.LittleEndian.AppendUint32(old, row.Tag)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(pin), then.Pin(pin)); err != nil {
		t.Fatal(err)
	}
}
