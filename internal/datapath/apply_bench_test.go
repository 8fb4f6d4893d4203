// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/dirlock"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// manyServices returns n services of two backends. Another variant has other backends.
func manyServices(n, variant int) []service.Service {
	all := make([]service.Service, n)
	for i := range all {
		addr := [4]byte{10}
		binary.BigEndian.PutUint16(addr[2:], uint16(i>>8))
		addr[1] = byte(i)
		backend := func(j int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + j), byte(i >> 8), byte(i)}), uint16(8000+variant))
		}
		all[i] = service.Service{
			Frontend: netip.AddrPortFrom(netip.AddrFrom4(addr), 80), Protocol: service.TCP,
			Backends: service.Backends(backend(0), backend(1)),
		}
	}
	return all
}

// BenchmarkApply applies 100,000 services of two backends, applies them once more, and changes 10,000 of them, while another
// process adds and deletes an endpoint's row all the time.
func BenchmarkApply(b *testing.B) {
	const services, changed = 100_000, 10_000
	d := openSized(b, Options{Root: testkit.BPFFS(b) + "/root", Sizes: objects.Sizes{Connections: 1 << 16}})
	first, second := manyServices(services, 0), manyServices(services, 0)
	copy(second, manyServices(changed, 1))
	waits := contend(b, d)
	var spent [4]time.Duration
	for b.Loop() {
		for i, step := range []struct {
			want   []service.Service
			result Result
		}{
			{first, Result{Added: services, RowsWritten: 3 * services}},
			{first, Result{Unchanged: services}},
			{second, Result{Updated: changed, Unchanged: services - changed, RowsWritten: 3 * changed, RowsDeleted: 2 * changed}},
			{nil, Result{Deleted: services, RowsDeleted: 3 * services}},
		} {
			begin := time.Now()
			result, err := d.Services().Apply(b.Context(), service.Agent, step.want)
			spent[i] += time.Since(begin)
			if err != nil || result != step.result {
				b.Fatalf("step %d: %+v, %v; want %+v", i, result, err, step.result)
			}
		}
	}
	for i, unit := range []string{"apply-s", "unchanged-s", "changed-s", "delete-s"} {
		b.ReportMetric(spent[i].Seconds()/float64(b.N), unit)
	}
	longest, p99, count := waits()
	b.ReportMetric(float64(longest.Microseconds())/1000, "max-lock-wait-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-lock-wait-ms")
	b.ReportMetric(float64(count)/float64(b.N), "lock-waits/op")
}

// contenderVariable makes the test binary a process that contends for the lock of the root.
const contenderVariable = "MUSTANG_DATAPATH_CONTENDER"

// contend starts a process that adds and deletes an endpoint's row until the function is called that it returns, which
// returns the longest wait for the lock, the 99th percentile and the number of waits.
func contend(b *testing.B, d *Datapath) func() (longest, p99 time.Duration, count int) {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), contenderVariable+"="+d.objects.Root())
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())(b)
	var out strings.Builder
	cmd.Stdout = &out
	succeed(b, cmd.Start())
	return func() (longest, p99 time.Duration, count int) {
		succeed(b, errors.Join(in.Close(), cmd.Wait()))
		must(fmt.Sscan(out.String(), &longest, &p99, &count))(b)
		return longest, p99, count
	}
}

// contender is the process. It ends with its standard input.
func contender(root string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	d, err := OpenExisting(Options{Root: root})
	row := Endpoint{ID: 1, IP: netip.MustParseAddr("192.168.10.10"), Owner: service.CNI}
	var waits []time.Duration
	for err == nil && ctx.Err() == nil {
		begin := time.Now()
		var lock *dirlock.Lock
		if lock, err = d.objects.LockTables(context.Background()); err != nil {
			break
		}
		waits = append(waits, time.Since(begin))
		err = d.Endpoints().write([]Endpoint{row})
		lock.Unlock()
		err = errors.Join(err, d.Endpoints().DeleteIP(context.Background(), row.IP))
		time.Sleep(time.Millisecond)
	}
	if slices.Sort(waits); len(waits) > 0 {
		fmt.Println(waits[len(waits)-1].Nanoseconds(), waits[len(waits)*99/100].Nanoseconds(), len(waits))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
