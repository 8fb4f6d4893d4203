// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkAddresses measures what the kernel alone takes for more addresses: the time of connects to 10,000 addresses of a
// pod at random, as a ratio to that of connects to ten of them, without any service. The figures are medians over rounds of
// 2,000 connects each, in which turns of both follow each other at once.
func BenchmarkAddresses(b *testing.B) {
	const few, many, rounds, turns, connects = 10, 10_000, 100, 44, 45
	n := routed(b)
	n.run(b, `
		-n PODA route add local 10.200.0.0/16 dev lo
		-n HOST route add 10.200.0.0/16 via `+podA4)
	server := must(n.listener(0))(b)
	defer unix.Close(server)
	var medians, tails []float64
	succeed(b, n.pods[1].Do(func() error {
		for range rounds {
			took := map[int][]time.Duration{}
			for turn := range turns {
				order := []int{few, many}
				if turn%2 == 1 {
					slices.Reverse(order)
				}
				for _, addresses := range order {
					for range connects {
						d, err := connectTo(server, rand.IntN(addresses))
						if err != nil {
							return err
						}
						took[addresses] = append(took[addresses], d)
					}
				}
			}
			slices.Sort(took[few])
			slices.Sort(took[many])
			ratio := func(percent int) float64 {
				i := len(took[few]) * percent / 100
				return float64(took[many][i]) / float64(took[few][i])
			}
			medians, tails = append(medians, ratio(50)), append(tails, ratio(99))
		}
		return nil
	}))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(medians), "p50-ratio")
	b.ReportMetric(median(tails), "p99-ratio")
}

// listener returns a socket that listens in a pod, at all its addresses.
func (n network) listener(pod int) (fd int, err error) {
	err = n.pods[pod].Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return cmp.Or(unix.Bind(fd, &unix.SockaddrInet4{Port: 5201}), unix.Listen(fd, 128))
	})
	return fd, err
}

// connectTo connects to the address with a number, and returns how long that took. The server resets the connection.
func connectTo(server, i int) (time.Duration, error) {
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(client)
	to := unix.SockaddrInet4{Port: 5201, Addr: [4]byte{10, 200, byte(i / 250), byte(1 + i%250)}}
	began := time.Now()
	if err := unix.Connect(client, &to); err != nil {
		return 0, err
	}
	took := time.Since(began)
	accepted, _, err := unix.Accept(server)
	if err != nil {
		return 0, err
	}
	err = unix.SetsockoptLinger(accepted, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return took, cmp.Or(err, unix.Close(accepted))
}
