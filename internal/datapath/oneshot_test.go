// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// BenchmarkOneShot is what a program that is started for each pod does, beside none and 200 other pods. The figures are
// medians, since others share the machine.
func BenchmarkOneShot(b *testing.B) {
	for _, kind := range []string{"veth", "macvlan"} {
		for _, others := range []int{0, 200} {
			b.Run(fmt.Sprintf("%s/%d", kind, others), func(b *testing.B) {
				n := map[string]func(testing.TB) network{"veth": routed, "macvlan": slaves}[kind](b)
				root := testkit.BPFFS(b) + "/root"
				d := openSized(b, Options{Root: root})
				n.crowd(b, d, others)
				oneShots{n, d, root}.run(b)
			})
		}
	}
}

type oneShots struct {
	network network
	d       *Datapath
	root    string
}

func (o oneShots) run(b *testing.B) {
	if _, _, err := o.d.Endpoints().Put(b.Context(), o.network.attachment(1)); err != nil {
		b.Fatal(err)
	}
	o.opening(b)
	b.Run("add and delete", func(b *testing.B) {
		var add, remove []time.Duration
		for b.Loop() {
			begin := time.Now()
			e, _, err := o.d.Endpoints().Put(b.Context(), o.network.attachment(0))
			added := time.Now()
			if err == nil {
				err = o.d.Endpoints().Delete(b.Context(), e[0].ID)
			}
			if err != nil {
				b.Fatal(err)
			}
			add, remove = append(add, added.Sub(begin)), append(remove, time.Since(added))
		}
		report(b, add, "µs/add")
		report(b, remove, "µs/delete")
	})
	b.Run("add again", func(b *testing.B) {
		var again []time.Duration
		for b.Loop() {
			begin := time.Now()
			if _, _, err := o.d.Endpoints().Put(b.Context(), o.network.attachment(1)); err != nil {
				b.Fatal(err)
			}
			again = append(again, time.Since(begin))
		}
		report(b, again, "µs")
	})
	b.Run("socket pod", func(b *testing.B) {
		cookie, err := o.network.pods[0].Cookie()
		if err != nil {
			b.Fatal(err)
		}
		var add, remove []time.Duration
		for b.Loop() {
			begin := time.Now()
			_, err := o.d.Sockets().Put(b.Context(), service.CNI, o.network.pods[0], PodScope)
			added := time.Now()
			if err = errors.Join(err, o.d.Sockets().Delete(b.Context(), service.CNI, cookie)); err != nil {
				b.Fatal(err)
			}
			add, remove = append(add, added.Sub(begin)), append(remove, time.Since(added))
		}
		report(b, add, "µs/add")
		report(b, remove, "µs/delete")
	})
	b.Run("service", o.service)
	b.Run("delete after the device", func(b *testing.B) {
		var remove []time.Duration
		for b.Loop() {
			o.network.replug(b)
			e, _, err := o.d.Endpoints().Put(b.Context(), o.network.attachment(0))
			if err != nil {
				b.Fatal(err)
			}
			o.network.run(b, "-n PODA link del eth0")
			begin := time.Now()
			if err := o.d.Endpoints().Delete(b.Context(), e[0].ID); err != nil {
				b.Fatal(err)
			}
			remove = append(remove, time.Since(begin))
		}
		report(b, remove, "µs/delete")
	})
}

// service measures a host port, of both protocols.
func (o oneShots) service(b *testing.B) {
	s := service.Service{Frontend: netip.MustParseAddrPort("172.16.1.1:80"), Protocol: service.Any,
		Backends: service.Backends(netip.MustParseAddrPort(podB4 + ":80"))}
	var add, remove []time.Duration
	for b.Loop() {
		begin := time.Now()
		_, _, err := o.d.Services().Put(b.Context(), service.CLI, s)
		added := time.Now()
		if err = errors.Join(err, o.d.Services().Delete(b.Context(), s.Owner, s.Key())); err != nil {
			b.Fatal(err)
		}
		add, remove = append(add, added.Sub(begin)), append(remove, time.Since(added))
	}
	report(b, add, "µs/put")
	report(b, remove, "µs/delete")
}

// opening measures the ways to get at what is pinned.
func (o oneShots) opening(b *testing.B) {
	for name, open := range openers() {
		b.Run(name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				begin := time.Now()
				d, err := open(Options{Root: o.root})
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, time.Since(begin))
				_ = d.Close()
			}
			report(b, all, "µs")
		})
		b.Run("process of "+name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				begin := time.Now()
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), openVariable+"="+name+" "+o.root)
				out, err := cmd.Output()
				if err != nil {
					b.Fatal(err)
				}
				var done int64
				if _, err := fmt.Sscan(string(out), &done); err != nil {
					b.Fatal(err)
				}
				all = append(all, time.Unix(0, done).Sub(begin))
			}
			report(b, all, "µs")
		})
	}
}

// openVariable makes the test binary a process that opens what is pinned and prints when it has.
const openVariable = "MUSTANG_DATAPATH_OPEN"

func openOnce(how string) int {
	name, root, _ := strings.Cut(how, " ")
	_, err := openers()[name](Options{Root: root})
	fmt.Println(time.Now().UnixNano())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// report gives the median.
func report(b *testing.B, all []time.Duration, unit string) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(median(all).Nanoseconds())/1000, unit)
}

// crowd makes other pods: rows of the table and, with a host's side, devices on the host.
func (n network) crowd(b *testing.B, d *Datapath, others int) {
	b.Helper()
	for i := range others {
		e := Endpoint{ID: uint32(1000 + i), Host: true, IfIndex: 1000 + i, PodMAC: mac("0e"), NodeMAC: mac("ee"), netns: uint64(1000 + i)}
		e.IP = netip.AddrFrom4([4]byte{192, 168, 20, byte(i)})
		v6 := e
		v6.IP = netip.MustParseAddr(fmt.Sprintf("fd00:20::%x", i))
		if err := errors.Join(d.Endpoints().write([]Endpoint{e, v6}), enableSockets(d.objects, e.netns)); err != nil {
			b.Fatal(err)
		}
	}
	if err := n.host.Do(func() error {
		var batch strings.Builder
		for i := range others {
			fmt.Fprintf(&batch, "link add o%d type veth peer name p%d\nlink set o%d up\n", i, i, i)
		}
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		return cmd.Run()
	}); err != nil {
		b.Fatal(err)
	}
}

// replug gives the first pod its device again, if it has none.
func (n network) replug(b *testing.B) {
	b.Helper()
	if _, err := rtnl.In(n.pods[0]).Device("eth0"); err == nil {
		return
	}
	link := "-n HOST link add va type veth peer name eth0 netns PODA"
	if _, err := rtnl.In(n.host).Device("mst-host"); err == nil {
		link = "-n HOST link add link up0 name eth0 netns PODA type macvlan mode bridge"
	}
	n.run(b, link+`
		-n PODA addr add `+podA4+`/32 dev eth0
		-n PODA addr add `+podA6+`/128 dev eth0 nodad`)
}

func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}
