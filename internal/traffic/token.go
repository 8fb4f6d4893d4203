// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
)

// Bounds of a token's length in bytes.
const (
	// MinToken is the least length of a token.
	MinToken = 16
	maxToken = 4096
)

// NewToken makes a random token, of letters and digits.
func NewToken() []byte { return []byte(rand.Text() + rand.Text()) }

// ReadToken reads a token from a file that nobody but its owner may read. Space
// around the token is none of it. No error holds any of what is in the file.
func ReadToken(path string) (_ []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read token: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read token: %s is no file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("read token: others may read or write %s (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	token := bytes.TrimSpace(data)
	if err := checkToken(token); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return token, nil
}

// WriteToken writes a token to a new file that only its owner may read.
func WriteToken(path string, token []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	_, err = file.Write(append(token[:len(token):len(token)], '\n'))
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write token: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// checkToken refuses a token that could be guessed.
func checkToken(token []byte) error {
	if len(token) < MinToken || len(token) > maxToken {
		return fmt.Errorf("token has %d bytes, want %d to %d", len(token), MinToken, maxToken)
	}
	return nil
}
