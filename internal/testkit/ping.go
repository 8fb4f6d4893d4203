// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"mustang/internal/nl"
)

// ICMP types (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	echoHeader               = 8
)

// Ping sends an ICMP echo request with so many bytes of payload from inside ns,
// and returns when the answer to it has come. It is an error if none comes in
// time, or another payload.
func Ping(ns *nl.Namespace, addr netip.Addr, size int) error {
	network, request, reply := "ip4:icmp", byte(echoRequest4), byte(echoReply4)
	if addr.Is6() {
		network, request, reply = "ip6:ipv6-icmp", echoRequest6, echoReply6
	}
	var conn *net.IPConn
	err := ns.Do(func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: addr.AsSlice()})
		return err
	})
	if err != nil {
		return fmt.Errorf("ping %s from %s: %w", addr, ns.Name(), err)
	}
	defer conn.Close()
	message := make([]byte, echoHeader+size)
	message[0] = request
	_, _ = rand.Read(message[4:]) // the identifier, the sequence number and the payload
	if addr.Is4() {
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	} // for IPv6 the kernel does
	if _, err := conn.Write(message); err != nil {
		return fmt.Errorf("ping %s from %s: %w", addr, ns.Name(), err)
	}
	if err := awaitEcho(conn, reply, message[4:]); err != nil {
		return fmt.Errorf("ping %s from %s: %w", addr, ns.Name(), err)
	}
	return nil
}

// awaitEcho reads until an answer of that type to that identifier comes.
func awaitEcho(conn *net.IPConn, reply byte, want []byte) error {
	if err := conn.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buffer) // without the IP header, unlike Read
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("no answer")
		}
		if err != nil {
			return err
		}
		message := buffer[:n]
		if n < echoHeader || message[0] != reply || !bytes.Equal(message[4:8], want[:4]) {
			continue
		}
		if !bytes.Equal(message[4:], want) {
			return fmt.Errorf("sent %d bytes, received %d others", len(want), n-4)
		}
		return nil
	}
}

// checksum is that of the Internet (RFC 1071).
func checksum(data []byte) uint16 {
	var sum uint32
	for ; len(data) > 1; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
