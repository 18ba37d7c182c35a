package id

import (
	"errors"
	"fmt"
)

// The range of endpoint numbers. Data plane arrays are larger, so the range
// can grow without a change there.
const (
	Min = 1
	Max = 4095
)

// ErrExhausted says that every number is in use.
var ErrExhausted = errors.New("all endpoint ids are in use")

// ErrInUse says that a requested number belongs to somebody else.
var ErrInUse = errors.New("endpoint id is in use")

// Pool is a bitmap of the numbers in use. It is not safe for concurrent use.
// The zero value is an empty pool.
type Pool struct {
	used [(Max + 64) / 64]uint64
	next uint16 // where the next search starts, minus Min
	n    int
}

// Take gives the next free number, searching round robin so that a freed
// number rests as long as possible.
func (p *Pool) Take() (uint16, error) {
	const size = Max - Min + 1
	for i := range size {
		n := uint16(Min + (int(p.next)+i)%size)
		if !p.has(n) {
			p.set(n)
			p.next = (n - Min + 1) % size
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: %d of %d; delete endpoints that are no longer needed", ErrExhausted, p.n, size)
}

// Reserve takes one given number, as a restored endpoint does.
func (p *Pool) Reserve(n uint16) error {
	if n < Min || n > Max {
		return fmt.Errorf("endpoint id %d is outside %d to %d", n, Min, Max)
	}
	if p.has(n) {
		return fmt.Errorf("%w: %d", ErrInUse, n)
	}
	p.set(n)
	return nil
}

// Free gives a number back. Freeing a free number does nothing.
func (p *Pool) Free(n uint16) {
	if n < Min || n > Max || !p.has(n) {
		return
	}
	p.used[n/64] &^= 1 << (n % 64)
	p.n--
}

// InUse returns how many numbers are taken.
func (p *Pool) InUse() int { return p.n }

func (p *Pool) has(n uint16) bool { return p.used[n/64]&(1<<(n%64)) != 0 }

func (p *Pool) set(n uint16) {
	p.used[n/64] |= 1 << (n % 64)
	p.n++
}
