// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"context"
	"sync"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/tun"
)

// startRelay joins the ends of a pod's link, and returns when both can send.
func (f *fixture) startRelay(t *testing.T, pod Pod) {
	t.Helper()
	open := func(ns *nl.Namespace, name string) *tun.Device {
		t.Helper()
		kind := tun.TUN
		if f.mode.Name() == "tap" {
			kind = tun.TAP
		}
		device, err := tun.Open(ns, tun.Options{Name: name, Kind: kind, Offload: f.large})
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	outer, inner := open(f.network.Host, pod.HostIfName), open(pod.Namespace, pod.IfName)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tun.Switch(ctx, outer, inner) // an error when the devices are deleted
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		_ = outer.Close()
		_ = inner.Close()
	})
	t.Cleanup(stop)
	f.stopRelay[pod.HostIfName] = stop
	f.awaitCarrier(t, f.network.Host, pod.HostIfName)
	f.awaitCarrier(t, pod.Namespace, pod.IfName)
	if f.mode.Name() == "tap" {
		f.awaitCarrier(t, f.network.Host, f.network.bridge())
	}
}

func (f *fixture) awaitCarrier(t *testing.T, ns *nl.Namespace, name string) {
	t.Helper()
	withHandle(t, ns, func(s side) error {
		link, err := s.link(name)
		if err != nil {
			return err
		}
		return s.awaitCarrier(link)
	})
}
