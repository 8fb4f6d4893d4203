// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxReport bounds what a client takes as a report, in bytes.
const maxReport = 1 << 16

// served starts a server's report with what the session knows.
func (s *session) served() Served {
	return Served{Workload: s.spec.Workload, Flows: 1, Local: s.local, Peer: s.peer, Congestion: s.congestion}
}

// publish makes a report known to the server's owner.
func (s *session) publish(r Served) {
	s.reported = true
	s.group.publish(r)
}

// sendReport sends the report, which has been published, to the client, as a
// length of 4 bytes and JSON.
func (s *session) sendReport(r Served) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	if _, err := s.Write(frame); err != nil {
		return fmt.Errorf("send report: %w", err)
	}
	return nil
}

// readReport reads what sendReport sent.
func (s *session) readReport() (Served, error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxReport {
		return Served{}, fmt.Errorf("read report: %d bytes announced", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(s, body); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	var r Served
	if err := json.Unmarshal(body, &r); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	if r.Error != "" {
		return Served{}, fmt.Errorf("server: %s", r.Error)
	}
	return r, nil
}

// drain reads and forgets until the client has closed its side, so that the
// report is not lost to a reset.
func (s *session) drain(buf []byte) error {
	for {
		if _, err := s.read(buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
