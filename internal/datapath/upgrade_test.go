// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUpgrade opens a root whose programs are of another build, while a connection is open.
func TestUpgrade(t *testing.T) { onEachLink(t, testLinkUpgrade) }

func testLinkUpgrade(t *testing.T, n network, d *Datapath) {
	n.attachBoth(t, d)
	backend := testkit.Echo(t, n.pods[0], "tcp", podA4+":0")
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: netip.MustParseAddrPort(service4 + ":80"), Protocol: service.TCP, Backends: service.Backends(backend)}))(t)
	conn := must(testkit.Dial(n.pods[1], "tcp", service4+":80"))(t)
	defer conn.Close()
	for _, name := range programPins(t, d) {
		_, rest, _ := strings.Cut(name, "-")
		succeed(t, os.Rename(filepath.Join(pins(d, "progs"), name), filepath.Join(pins(d, "progs"), "0000-"+rest)))
	}
	before := linkedProgram(t, n, d)
	again := must(Open(t.Context(), Options{Root: d.objects.Root()}))(t)
	defer again.Close()
	links := must(d.objects.Links())(t)
	var want []string // those that are attached
	for _, k := range links {
		want = append(want, k.Hook.PinName())
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := programPins(t, d); !slices.Equal(got, want) {
		t.Errorf("pinned programs %v, want %v", got, want)
	}
	if linkedProgram(t, n, d) == before {
		t.Error("the old program is attached still")
	}
	buffer := make([]byte, 128)
	must(conn.Write([]byte("ping")))(t)
	for got := ""; !strings.HasSuffix(got, "ping"); {
		count, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("the connection broke: %v", err)
		}
		got += string(buffer[:count])
	}
}

func programPins(t *testing.T, d *Datapath) (names []string) {
	t.Helper()
	entries := must(os.ReadDir(pins(d, "progs")))(t)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	return names
}

// linkedProgram returns the id of the program that sees what leaves the first pod.
func linkedProgram(t *testing.T, n network, d *Datapath) uint32 {
	t.Helper()
	place := must(n.attachment(0).Find())(t)
	defer place.Close()
	l := must(link.LoadPinnedLink(pins(d, "links", objects.Link{Hook: objects.Hook{Point: place.Point, Program: "from_pod"}, ID: 1}.String()), nil))(t)
	defer l.Close()
	info := must(l.Info())(t)
	return uint32(info.Program)
}
