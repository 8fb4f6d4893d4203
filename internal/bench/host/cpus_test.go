// SPDX-License-Identifier: Apache-2.0

package host

import (
	"runtime"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]CPUPair{
		"0":   {Client: 0, Server: 0, Set: true},
		"1,0": {Client: 1, Server: 0, Set: true},
	} {
		if got, err := ParseCPUs(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "0,", "0,1,2", "-1", "0,4096"} {
		if got, err := ParseCPUs(text); err == nil {
			t.Errorf("%q parsed as %+v", text, got)
		}
	}
}

func TestDefaultIsOneUsableCPU(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	if err != nil || p.Client != p.Server || !p.Set {
		t.Errorf("%+v, %v; want the same CPU for both", p, err)
	}
	if _, err := (CPUPair{Client: 1000, Server: 0, Set: true}).Resolve(); err == nil {
		t.Error("CPU 1000 was accepted")
	}
}

func TestOtherCPUIsNotTheServers(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if cpu, err := p.Other(); runtime.NumCPU() > 1 != (err == nil) || err == nil && cpu == p.Server {
		t.Errorf("CPU %d beside %+v, %v", cpu, p, err)
	}
	if cpu, err := (CPUPair{Client: 0, Server: 1}).Other(); err == nil {
		t.Errorf("CPU %d, though client and server run on two", cpu)
	}
}
