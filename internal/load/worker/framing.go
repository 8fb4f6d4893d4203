// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"mustang/internal/load"
)

// A connection begins with a header from the client, which is repeated over UDP until
// it is answered:
//
//	magic "MST5" | workload code | flows | flags | 1 byte zero | run | warmup |
//	duration | stall | limit | settle | size | window | request | response | delay |
//	congestion control, 16 bytes, zero-padded
//
// The flows of one run have the same run number, which is drawn at random. Numbers are
// 8 bytes, big-endian; times are nanoseconds.
const (
	headerMagic = "MST5"
	headerSize  = 8 + 11*8 + load.MaxCongestion
)

// Flags of a header.
const (
	flagStanding = 1 << iota // the connection carries load in slices
	flagReverse
)

// header is the content of a header. Fields of the spec that concern the client alone
// are zero.
type header struct {
	workload workload
	spec     load.Spec
	run      uint64
}

// encodeHeader returns the header of a session of workload w.
func encodeHeader(w workload, s *session) []byte {
	spec := s.spec
	b := append(make([]byte, 0, headerSize), headerMagic...)
	var flags byte
	if spec.Standing {
		flags |= flagStanding
	}
	if spec.Reverse {
		flags |= flagReverse
	}
	b = append(b, w.code(), byte(spec.FlowCount()), flags, 0)
	b = binary.BigEndian.AppendUint64(b, s.id.run)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Warmup))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Duration))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.StallTime()))
	b = binary.BigEndian.AppendUint64(b, spec.Limit)
	b = binary.BigEndian.AppendUint64(b, spec.Settle)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.DatagramSize()))
	b = binary.BigEndian.AppendUint64(b, spec.Window)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.RequestSize()))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.ResponseSize()))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Delay))
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
	spec := load.Spec{
		Workload:   w.name(),
		Flows:      int(b[5]),
		Warmup:     time.Duration(binary.BigEndian.Uint64(b[16:])),
		Duration:   time.Duration(binary.BigEndian.Uint64(b[24:])),
		Stall:      time.Duration(binary.BigEndian.Uint64(b[32:])),
		Limit:      binary.BigEndian.Uint64(b[40:]),
		Settle:     binary.BigEndian.Uint64(b[48:]),
		Size:       int(binary.BigEndian.Uint64(b[56:])),
		Window:     binary.BigEndian.Uint64(b[64:]),
		Request:    int(binary.BigEndian.Uint64(b[72:])),
		Response:   int(binary.BigEndian.Uint64(b[80:])),
		Delay:      time.Duration(binary.BigEndian.Uint64(b[88:])),
		Congestion: strings.TrimRight(string(b[96:]), "\x00"),
		Reverse:    b[6]&flagReverse != 0,
		Standing:   b[6]&flagStanding != 0,
	}
	if err := spec.CheckSizes(); err != nil {
		return header{}, err
	}
	if spec.Request != spec.RequestSize() || spec.Response != spec.ResponseSize() {
		return header{}, fmt.Errorf("load: header with requests of %d and responses of %d bytes", spec.Request, spec.Response)
	}
	if spec.Flows < 1 || spec.Flows > load.MaxFlows || spec.Flows > 1 && !spec.IsStream() {
		return header{}, fmt.Errorf("load: header with %d flows of %s", spec.Flows, spec.Workload)
	}
	if spec.Size < load.MinDatagram || spec.Size > load.MaxDatagram {
		return header{}, fmt.Errorf("load: header with datagrams of %d bytes", spec.Size)
	}
	if spec.Reverse && (spec.Workload != load.TCPStream || !spec.Standing) {
		return header{}, fmt.Errorf("load: header of a reversed %s", spec.Workload)
	}
	if spec.Delay < 0 || spec.Delay > load.MaxDelay {
		return header{}, fmt.Errorf("load: header with a delay of %v", spec.Delay)
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
func (s *session) served() load.Served {
	return load.Served{Workload: s.spec.Workload, Flows: 1, Local: s.local, Peer: s.peer, Congestion: s.congestion}
}

// publish passes a report to the server's parent.
func (s *session) publish(r load.Served) {
	s.reported = true
	s.run.publish(r)
}

// sendReport sends the published report to the client: a length of 4 bytes and JSON.
func (s *session) sendReport(r load.Served) error {
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
func (s *session) readReport() (load.Served, error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxReport {
		return load.Served{}, fmt.Errorf("read report: length %d", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(s, body); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	return decodeReport(body)
}

// decodeReport reads a report. A report with an error becomes that error.
func decodeReport(body []byte) (load.Served, error) {
	var r load.Served
	if err := json.Unmarshal(body, &r); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	if r.Error != "" {
		return load.Served{}, fmt.Errorf("server: %s", load.Printable(r.Error))
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
