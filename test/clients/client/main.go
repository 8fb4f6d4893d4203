// SPDX-License-Identifier: Apache-2.0

// Command client is the program that tests run in containers. With addresses it sends to echo servers over TCP and
// UDP, and expects its data back; without addresses it waits for a signal to end.
//
//	client [ADDRESS:PORT...]
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// timeout is how long one exchange may take.
const timeout = 5 * time.Second

func main() {
	if len(os.Args) == 1 {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, unix.SIGTERM)
		<-ended
		return
	}
	for _, addr := range os.Args[1:] {
		for _, network := range []string{"tcp", "udp"} {
			if err := exchange(network, addr); err != nil {
				fmt.Fprintf(os.Stderr, "client: %s to %s: %v\n", network, addr, err)
				os.Exit(1)
			}
		}
	}
}

// exchange exchanges data with a server of testkit.Echo, which over TCP sends a line first.
func exchange(network, addr string) error {
	conn, err := net.DialTimeout(network, addr, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	sent := []byte("mustang")
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	var got []byte
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.CloseWrite(); err != nil {
			return err
		}
		got, err = io.ReadAll(conn)
		_, got, _ = bytes.Cut(got, []byte("\n"))
	} else {
		got = make([]byte, 2*len(sent))
		var n int
		n, err = conn.Read(got)
		got = got[:n]
	}
	if err == nil && !bytes.Equal(got, sent) {
		err = fmt.Errorf("sent %q, received %q", sent, got)
	}
	return err
}
