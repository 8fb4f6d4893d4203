// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Both ends of a control connection prove that they know the token, without
// saying it (HMAC, RFC 2104, with SHA-256). Each line is JSON:
//
//	server  greeting: what it is, its version, a nonce
//	client  hello: a nonce, and its proof over both nonces
//	server  welcome: its own proof over both, and its limits; or an error
//
// What follows is neither secret nor signed: who can change packets on the way can
// change commands too, and gets what a peer gets: load from the limits' range.
const (
	peerMagic    = "mustang bench"
	peerVersion  = 1
	nonceSize    = 32
	clientSigned = "mustang bench client 1"
	serverSigned = "mustang bench server 1"
	// handshakeTimeout is how long all of it may take.
	handshakeTimeout = 5 * time.Second
	// maxLine is the longest line that a server takes, maxReply the longest that a
	// client takes, in bytes.
	maxLine  = 4 << 10
	maxReply = maxReport
)

type greeting struct {
	Magic   string `json:"magic"`
	Version int    `json:"version"`
	Nonce   []byte `json:"nonce,omitempty"`
	Error   string `json:"error,omitempty"`
}

type hello struct {
	Nonce []byte `json:"nonce"`
	Proof []byte `json:"proof"`
}

type welcome struct {
	Proof  []byte `json:"proof,omitempty"`
	Limits Limits `json:"limits,omitzero"`
	Error  string `json:"error,omitempty"`
}

// errToken refuses a peer with another token.
var errToken = errors.New("wrong token")

// ErrBusy is what a server says to a peer while it serves another one.
var ErrBusy = errors.New("busy with another peer")

// prove signs both nonces in one of the two roles.
func prove(token []byte, role string, server, client []byte) []byte {
	mac := hmac.New(sha256.New, token)
	for _, part := range [][]byte{[]byte(role), server, client} {
		_, _ = mac.Write([]byte{byte(len(part))}) // never fails
		_, _ = mac.Write(part)
	}
	return mac.Sum(nil)
}

// nonce draws the number that a proof is good for.
func nonce() []byte {
	b := make([]byte, nonceSize)
	_, _ = rand.Read(b) // never fails
	return b
}

// lines is a connection that carries JSON lines of bounded length.
type lines struct {
	conn net.Conn
	in   *bufio.Reader
	*lineWriter
}

func newLines(conn net.Conn, longest int) *lines {
	return &lines{conn: conn, in: bufio.NewReaderSize(conn, longest), lineWriter: newLineWriter(conn)}
}

// read reads a line into a value. No error holds any of the line.
func (l *lines) read(value any) error {
	line, err := l.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("line of more than %d bytes", l.in.Size())
	case err != nil:
		return err
	}
	if json.Unmarshal(line, value) != nil {
		return errors.New("line that makes no sense")
	}
	return nil
}

// authenticate is the server's side up to its welcome, which is left to the
// caller: the proof that goes into it comes back.
func authenticate(l *lines, token []byte) (proof []byte, err error) {
	mine := nonce()
	if err := l.write(greeting{Magic: peerMagic, Version: peerVersion, Nonce: mine}); err != nil {
		return nil, err
	}
	var h hello
	if err := l.read(&h); err != nil {
		return nil, err
	}
	if len(h.Nonce) != nonceSize || !hmac.Equal(h.Proof, prove(token, clientSigned, mine, h.Nonce)) {
		_ = l.write(welcome{Error: errToken.Error()}) // the client may be gone
		return nil, errToken
	}
	return prove(token, serverSigned, mine, h.Nonce), nil
}

// introduce is the client's side. It returns the server's limits.
func introduce(l *lines, token []byte) (Limits, error) {
	var g greeting
	if err := l.read(&g); err != nil {
		return Limits{}, err
	}
	switch {
	case g.Error != "":
		return Limits{}, fmt.Errorf("%.200q", g.Error)
	case g.Magic != peerMagic || len(g.Nonce) != nonceSize:
		return Limits{}, errors.New("is no mustang bench serve")
	case g.Version != peerVersion:
		return Limits{}, fmt.Errorf("speaks version %d of the protocol, this is version %d", g.Version, peerVersion)
	}
	mine := nonce()
	if err := l.write(hello{Nonce: mine, Proof: prove(token, clientSigned, g.Nonce, mine)}); err != nil {
		return Limits{}, err
	}
	var w welcome
	if err := l.read(&w); err != nil {
		return Limits{}, err
	}
	switch {
	case w.Error == errToken.Error():
		return Limits{}, errToken
	case !hmac.Equal(w.Proof, prove(token, serverSigned, g.Nonce, mine)):
		return Limits{}, errors.New("does not know the token itself")
	case w.Error == ErrBusy.Error():
		return Limits{}, ErrBusy
	case w.Error != "":
		return Limits{}, errors.New(w.Error)
	}
	return w.Limits, nil
}
