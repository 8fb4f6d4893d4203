// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A connection begins with a header from the client, which is repeated over UDP until
// it is answered:
//
//	magic "MST3" | workload code | flows | 2 bytes zero | run | warmup |
//	duration | stall | limit | settle | size | window |
//	congestion control, 16 bytes, zero-padded
//
// The flows of one run have the same run number, which is drawn at random. Numbers are
// 8 bytes, big-endian; times are nanoseconds.
const (
	headerMagic   = "MST3"
	maxCongestion = 16 // TCP_CA_NAME_MAX of linux/tcp.h
	headerSize    = 8 + 8*8 + maxCongestion
)

// header is the content of a header. Fields of the spec that concern the client alone
// are zero.
type header struct {
	workload workload
	spec     Spec
	run      uint64
}

// encodeHeader returns the header of a session of workload w.
func encodeHeader(w workload, s *session) []byte {
	spec := s.spec
	b := append(make([]byte, 0, headerSize), headerMagic...)
	b = append(b, w.code(), byte(spec.flows()), 0, 0)
	b = binary.BigEndian.AppendUint64(b, s.id.run)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Warmup))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Duration))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.stall()))
	b = binary.BigEndian.AppendUint64(b, spec.Limit)
	b = binary.BigEndian.AppendUint64(b, spec.Settle)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.size()))
	b = binary.BigEndian.AppendUint64(b, spec.Window)
	b = append(b, s.congestion...)
	return append(b, make([]byte, headerSize-len(b))...)
}

// decodeHeader reads the form that encodeHeader writes.
func decodeHeader(b []byte) (header, error) {
	if len(b) != headerSize || string(b[:len(headerMagic)]) != headerMagic {
		return header{}, errors.New("load: not a mustang client, or one of another version")
	}
	w, err := lookupCode(b[4])
	if err != nil {
		return header{}, err
	}
	spec := Spec{
		Workload:   w.name(),
		Flows:      int(b[5]),
		Warmup:     time.Duration(binary.BigEndian.Uint64(b[16:])),
		Duration:   time.Duration(binary.BigEndian.Uint64(b[24:])),
		Stall:      time.Duration(binary.BigEndian.Uint64(b[32:])),
		Limit:      binary.BigEndian.Uint64(b[40:]),
		Settle:     binary.BigEndian.Uint64(b[48:]),
		Size:       int(binary.BigEndian.Uint64(b[56:])),
		Window:     binary.BigEndian.Uint64(b[64:]),
		Congestion: strings.TrimRight(string(b[72:]), "\x00"),
	}
	if spec.Flows < 1 || spec.Flows > MaxFlows || spec.Flows > 1 && w.name() == TCPRR {
		return header{}, fmt.Errorf("load: header with %d flows of %s", spec.Flows, spec.Workload)
	}
	if spec.Size < MinDatagram || spec.Size > maxDatagram {
		return header{}, fmt.Errorf("load: header with datagrams of %d bytes", spec.Size)
	}
	if spec.Warmup < 0 || spec.Duration < 0 || spec.Stall <= 0 {
		return header{}, fmt.Errorf("load: header with warmup %v, duration %v, stall %v",
			spec.Warmup, spec.Duration, spec.Stall)
	}
	return header{w, spec, binary.BigEndian.Uint64(b[8:])}, nil
}

// maxReport bounds a server's report, in bytes.
const maxReport = 1 << 16

// served returns a report with the session's own fields.
func (s *session) served() Served {
	return Served{Workload: s.spec.Workload, Flows: 1, Local: s.local, Peer: s.peer, Congestion: s.congestion}
}

// publish passes a report to the server's parent.
func (s *session) publish(r Served) {
	s.reported = true
	s.run.publish(r)
}

// sendReport sends the published report to the client: a length of 4 bytes and JSON.
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

// readReport reads the form that sendReport sends.
func (s *session) readReport() (Served, error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxReport {
		return Served{}, fmt.Errorf("read report: length %d", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(s, body); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	return decodeReport(body)
}

// decodeReport reads a report. A report with an error becomes that error.
func decodeReport(body []byte) (Served, error) {
	var r Served
	if err := json.Unmarshal(body, &r); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	if r.Error != "" {
		return Served{}, fmt.Errorf("server: %s", printable(r.Error))
	}
	return r, nil
}

// drain reads until the client has closed its end, so that the report is not lost to a
// reset.
func (s *session) drain(buf []byte) error {
	for {
		if _, err := s.read(buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
