// The arithmetic of launch plans: exact integers below 2^80 and doubles, as kernelsearch evaluates
// them when it tunes. What has no value (a division by zero, a number out of hand) is remembered.
#ifndef KERNELSEARCH_ARITHMETIC_HPP
#define KERNELSEARCH_ARITHMETIC_HPP

#include <cmath>
#include <cstdint>

namespace kernelsearch {

__extension__ typedef __int128 integer;

class Arithmetic {
 public:
  bool failed() const { return failed_; }

  integer whole(integer v) { return v > -limit() && v < limit() ? v : fail(); }
  double real(double v) { return v > -0x1p80 && v < 0x1p80 ? v : static_cast<double>(fail()); }

  integer add(integer a, integer b) { return whole(a + b); }
  integer sub(integer a, integer b) { return whole(a - b); }
  integer neg(integer a) { return -a; }
  integer mul(integer a, integer b) {
    integer product = 0;
    return __builtin_mul_overflow(a, b, &product) ? fail() : whole(product);
  }
  integer floordiv(integer a, integer b) {
    if (b == 0) return fail();
    const integer q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
  }
  integer mod(integer a, integer b) {
    if (b == 0) return fail();
    const integer r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
  integer pow(integer base, integer power) {
    if (power < 0 || power > 64) return fail();
    integer result = 1;
    for (integer i = 0; i < power; ++i) result = mul(result, base);
    return result;
  }
  integer ceildiv(integer a, integer b) { return -floordiv(-a, b); }
  integer round_up(integer a, integer b) { return mul(ceildiv(a, b), b); }
  integer abs(integer a) { return a < 0 ? -a : a; }
  integer min(integer a, integer b) { return b < a ? b : a; }
  integer max(integer a, integer b) { return b > a ? b : a; }
  integer ilog2(integer a) {
    if (a < 1) return fail();
    integer log = 0;
    while (a >>= 1) ++log;
    return log;
  }
  integer next_pow2(integer a) {
    integer power = 1;
    while (power < a) power <<= 1;
    return power;
  }
  integer ispow2(integer a) { return a > 0 && (a & (a - 1)) == 0; }

  double add(double a, double b) { return real(a + b); }
  double sub(double a, double b) { return real(a - b); }
  double neg(double a) { return -a; }
  double mul(double a, double b) { return real(a * b); }
  double div(double a, double b) { return b == 0 ? static_cast<double>(fail()) : real(a / b); }
  double mod(double a, double b) {
    if (b == 0) return static_cast<double>(fail());
    double r = std::fmod(a, b);
    if (r != 0 ? (r < 0) != (b < 0) : false) r += b;
    return real(r);
  }
  double floordiv(double a, double b) {
    if (b == 0) return static_cast<double>(fail());
    const double whole_part = (a - mod(a, b)) / b;
    double floor = std::floor(whole_part);
    if (whole_part - floor > 0.5) floor += 1.0;
    return real(floor);
  }
  double pow(double base, double power) {
    if (!(power >= -64 && power <= 64)) return static_cast<double>(fail());
    return real(std::pow(base, power));
  }
  integer ceildiv(double a, double b) {
    return b == 0 ? fail() : static_cast<integer>(real(std::ceil(a / b)));
  }
  double abs(double a) { return std::fabs(a); }
  double min(double a, double b) { return b < a ? b : a; }
  double max(double a, double b) { return b > a ? b : a; }

  // A value that must be a whole number.
  integer to_integer(integer v) { return v; }
  integer to_integer(double v) {
    return v == std::floor(v) ? static_cast<integer>(real(v)) : fail();
  }

 private:
  static constexpr integer limit() { return static_cast<integer>(1) << 80; }
  integer fail() {
    failed_ = true;
    return 0;
  }
  bool failed_ = false;
};

}  // namespace kernelsearch

#endif
