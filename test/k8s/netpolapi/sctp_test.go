// SPDX-License-Identifier: Apache-2.0

package netpolapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Where pods have this program, and agnhost.
const (
	replaced = "/agnhost"
	original = "/agnhost.original"
)

func beAgnhost(args []string) error {
	line, timeout, dest := strings.Join(args, " "), "", ""
	connects, _ := fmt.Sscanf(line, "connect --timeout=%s --protocol=sctp %s", &timeout, &dest)
	switch {
	case !hasSCTP() && line == "porter":
		return answer()
	case !hasSCTP() && connects == 2:
		limit, err := time.ParseDuration(timeout)
		if err != nil {
			return err
		}
		return knock(dest, time.Now().Add(limit))
	}
	return syscall.Exec(original, append([]string{original}, args...), os.Environ())
}

// hasSCTP reports whether the kernel supports SCTP.
func hasSCTP() bool {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP)
	return err == nil && syscall.Close(fd) == nil
}

// Chunks that set up an association, of RFC 9260.
const (
	chunkINIT    = 1
	chunkINITACK = 2
)

var order = binary.BigEndian

// packet is one with a chunk INIT, or INIT ACK, which answers a tag.
func packet(from, to uint16, tag uint32, kind byte) []byte {
	b := order.AppendUint32(order.AppendUint16(order.AppendUint16(nil, from), to), tag)
	b = append(b, 0, 0, 0, 0, kind, 0, 0, 28) // the checksum, and the length of the chunk
	b = order.AppendUint32(b, ownTag)
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // window, streams, first number
	b = append(b, 0, 7, 0, 8, 1, 2, 3, 4)             // a state cookie, which INIT does not need
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

var ownTag = rand.Uint32() | 1

// answer answers each INIT to the port of the environment.
func answer() error {
	var port uint16
	for _, value := range os.Environ() {
		_, _ = fmt.Sscanf(value, "SERVE_SCTP_PORT_%d", &port)
	}
	failed := make(chan error)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		go func() {
			conn, err := net.ListenPacket(network, "")
			for b := make([]byte, 1500); err == nil; {
				var n int
				var from net.Addr
				n, from, err = conn.ReadFrom(b)
				if err == nil && n >= 20 && b[12] == chunkINIT && order.Uint16(b[2:]) == port {
					_, _ = conn.WriteTo(packet(port, order.Uint16(b), order.Uint32(b[16:]), chunkINITACK), from) // else it retries
				}
			}
			failed <- err
		}()
	}
	return <-failed
}

// knock sends INIT until it is answered.
func knock(dest string, end time.Time) error {
	to, err := net.ResolveUDPAddr("udp", dest)
	if err != nil {
		return err
	}
	conn, err := net.DialIP("ip:132", nil, &net.IPAddr{IP: to.IP})
	if err != nil {
		return err
	}
	own, b := uint16(32768+rand.IntN(28000)), make([]byte, 1500)
	for time.Now().Before(end) {
		_, err := conn.Write(packet(own, uint16(to.Port), 0, chunkINIT))
		if err := errors.Join(err, conn.SetReadDeadline(time.Now().Add(time.Second))); err != nil {
			return err
		}
		for n := 0; err == nil; {
			n, _, err = conn.ReadFromIP(b)
			if err == nil && n >= 20 && b[12] == chunkINITACK && order.Uint16(b[2:]) == own && order.Uint32(b[4:]) == ownTag {
				return nil
			}
		}
	}
	return errors.New("TIMEOUT")
}
