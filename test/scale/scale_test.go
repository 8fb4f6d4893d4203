// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

const (
	probeStep  = 500 // the distance of services that the client connects to
	turns      = 3   // how often each proxy is started
	changes    = 100 // the rate of changes of EndpointSlices, and changeTime how long they last in each turn
	changeTime = 20 * time.Second
	probeEvery = 10 // the share of changes that are waited for: changes of services with a real backend
)

// BenchmarkScale starts each proxy in turns and reports medians of the turns. Reported are the time from its start
// until all probed services answer, and its memory then. The third is the time from a change of an EndpointSlice,
// among a hundred changes a second, to the first connection to the new backend.
func BenchmarkScale(b *testing.B) {
	c := startCluster(b)
	started := time.Now()
	c.fill(b, map[string]int{"nodes": nodes, "pods": pods, "policies": policies, "services": services})
	b.Logf("%d services of %d endpoints, %d nodes, %d pods, %d policies: made in %v", services, perService, nodes, pods,
		policies, time.Since(started).Round(time.Second))
	all := []proxy{mustang(b, c), kubeProxy(b, c)}
	figures := map[string]map[string][]float64{}
	for turn := range turns {
		order := slices.Clone(all)
		if turn%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			if figures[p.name] == nil {
				figures[p.name] = map[string][]float64{}
			}
			for unit, figure := range c.measure(b, p, turn) {
				figures[p.name][unit] = append(figures[p.name][unit], figure)
			}
		}
	}
	for _, p := range all {
		for unit, samples := range figures[p.name] {
			slices.Sort(samples)
			b.ReportMetric(samples[len(samples)/2], p.name+"-"+unit)
			b.Logf("%s %s: %.3g", p.name, unit, samples)
		}
	}
}

// measure starts a proxy, whose tables stay from the turn before, and ends it.
func (c *cluster) measure(b *testing.B, p proxy, turn int) map[string]float64 {
	b.Helper()
	for i := 0; i < services; i += probeStep { // remains of the turn before must not count
		c.move(b, i, turn%2)
	}
	started := time.Now()
	running := p.start(b, turn)
	defer running.stop()
	testkit.Eventually(b, 20*time.Minute, func() error {
		testkit.Succeed(b, running.check())
		for i := 0; i < services; i += probeStep {
			if answer, err := p.node.ask(clusterIP(i), 100*time.Millisecond); err != nil || answer != byte('a'+turn%2) {
				return fmt.Errorf("service %d: answer %q, %v", i, answer, err)
			}
		}
		return nil
	})
	figures := map[string]float64{"sync-s": time.Since(started).Seconds()}
	time.Sleep(10 * time.Second) // the memory for the first lists is free again
	resident, own, err := memory(running.cmd.Process.Pid)
	testkit.Succeed(b, err)
	figures["resident-MB"], figures["own-MB"] = resident/1e6, own/1e6
	times := c.change(b, p, 1-turn%2)
	slices.Sort(times)
	figures["change-p50-ms"] = times[len(times)/2].Seconds() * 1e3
	figures["change-p99-ms"] = times[len(times)*99/100].Seconds() * 1e3
	return figures
}

// change changes EndpointSlices at a rate, and returns how long changes of probed services took to reach the client.
func (c *cluster) change(b *testing.B, p proxy, to int) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { // services without clients
		ticker := time.NewTicker(time.Second / (changes - changes/probeEvery))
		defer ticker.Stop()
		for i := 1; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if i%probeStep == 0 {
				continue
			}
			at := i % services
			all := append(madeUp(at), number("10.129.0.0", i))
			go func() {
				if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, slice(at, all),
					metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
					select {
					case failed <- err:
					default:
					}
				}
			}()
		}
	}()
	var times []time.Duration
	every := time.Second * probeEvery / changes
	for begun, i := time.Now(), 0; time.Since(begun) < changeTime; i += probeStep {
		at := time.Now()
		service := i % services
		c.move(b, service, to)
		for {
			if answer, err := p.node.ask(clusterIP(service), time.Second); err == nil && answer == byte('a'+to) {
				break
			}
			testkit.Require(b, time.Since(at) <= time.Minute, "service %d: the change had no effect", service)
			time.Sleep(200 * time.Microsecond)
		}
		times = append(times, time.Since(at))
		if service == services-probeStep {
			to = 1 - to
		}
		time.Sleep(max(0, every-time.Since(at)))
	}
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
	return times
}

func (c *cluster) move(b *testing.B, service, to int) {
	b.Helper()
	if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Update(b.Context(),
		slice(service, []netip.Addr{backends[to]}), metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
}
