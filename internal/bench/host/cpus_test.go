// SPDX-License-Identifier: Apache-2.0

package host

import (
	"runtime"
	"testing"

	"mustang/internal/testkit"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]CPUPair{
		"0":   {Client: 0, Server: 0, Set: true},
		"1,0": {Client: 1, Server: 0, Set: true},
	} {
		got, err := ParseCPUs(text)
		testkit.Check(t, err == nil && got == want, "%q: %+v, %v; want %+v", text, got, err, want)
	}
	for _, text := range []string{"", "x", "0,", "0,1,2", "-1", "0,4096"} {
		got, err := ParseCPUs(text)
		testkit.Check(t, err != nil, "%q parsed as %+v", text, got)
	}
}

func TestDefaultIsOneUsableCPU(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	testkit.Check(t, err == nil && p.Client == p.Server && p.Set, "%+v, %v; want the same CPU for both", p, err)
	_, err = (CPUPair{Client: 1000, Server: 0, Set: true}).Resolve()
	testkit.Check(t, err != nil, "CPU 1000 was accepted")
}

func TestOtherCPUIsNotTheServers(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	testkit.Succeed(t, err)
	if cpu, err := p.Other(); runtime.NumCPU() > 1 != (err == nil) || err == nil && cpu == p.Server {
		t.Errorf("CPU %d beside %+v, %v", cpu, p, err)
	}
	cpu, err := (CPUPair{Client: 0, Server: 1}).Other()
	testkit.Check(t, err != nil, "CPU %d, though client and server run on two", cpu)
}
