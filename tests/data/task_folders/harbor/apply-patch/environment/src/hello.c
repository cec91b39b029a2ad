int puts(const char *);
int main(void) { return puts("hello"); }
